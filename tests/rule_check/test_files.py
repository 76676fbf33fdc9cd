"""Whole files: rules seen in public, our own, Kubernetes objects, dashboards, and rubbish."""

import io
import json
from pathlib import Path

import pytest

from sidecar.rule_check import Code, RuleFileError, check_files, run
from sidecar.rule_check.metric_table import NEWEST
from sidecar.sources.releases import parse_release

_ROOT = Path(__file__).parents[2]
_RULES = _ROOT / "tests" / "captures" / "rules"
_OWN = [
    *sorted((_ROOT / "deploy" / "prometheus" / "rules").glob("*.yml")),
    *sorted((_ROOT / "dashboards").glob("*.json")),
]
_REAL_FAULTS = {
    "R02": {Code.WRONG_PREFIX, Code.LIFETIME_QUANTILE},
    "R03": {Code.HISTOGRAM_WITHOUT_SUFFIX, Code.LIFETIME_QUANTILE},
    "R04": {Code.MILLISECONDS_AGAINST_SECONDS},
    "R05": {Code.UNKNOWN_METRIC, Code.GPU_MEMORY_ALARM},
    "R06": {Code.UNKNOWN_METRIC, Code.WRONG_PREFIX},
    "R08": {Code.PREEMPTION_ALARM},
    "R09": {Code.PREEMPTION_ALARM},
    "R10": {Code.QUEUE_ALARM},
    "R12": {Code.IDLE_ALARM},
    "R13": {Code.IDLE_ALARM},
    "R14": {Code.MISSING_TOTAL},
    "R15": {Code.MISSING_TOTAL},
    "vllm:num_requests_waiting": {Code.SHADOWED_METRIC, Code.WRONG_PREFIX},
    "R17": {Code.PREEMPTION_ALARM},
    "R18": {Code.ABORT_AS_FAILURE},
    "R19": {Code.REMOVED_METRIC, Code.SUMMED_RATIO},
    "R21": {Code.HOST_MEMORY_ALARM},
}


def test_every_wrong_rule_seen_in_public_is_named_for_what_is_wrong_with_it() -> None:
    errors: dict[str, set[Code]] = {}
    for finding in check_files([_RULES / "rules-wild-bad.yml"], NEWEST):
        if finding.severity == "error":
            errors.setdefault(finding.rule, set()).add(finding.code)
    assert errors == _REAL_FAULTS


def test_right_rules_seen_in_public_have_no_error() -> None:
    found = check_files([_RULES / "rules-wild-good.yml"], NEWEST)
    assert {finding.severity for finding in found} <= {"info"}


@pytest.mark.parametrize("version", ["0.33.0", "0.10.2", "0.6.3"])
def test_own_rules_and_dashboards_have_no_fault(version: str) -> None:
    release = parse_release(version)
    assert release is not None
    assert len(_OWN) >= 3
    found = check_files(_OWN, release)
    assert [one for one in found if one.severity != "info"] == []


def test_the_page_lists_every_code() -> None:
    page = (_ROOT / "docs" / "check-rules.md").read_text()
    listed = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {code.strip(" `") for cell in listed for code in cell.split(",")} == set(Code)


def test_the_line_is_that_of_the_expression() -> None:
    file = _RULES / "rules-wild-bad.yml"
    lines = file.read_text().splitlines()
    for finding in check_files([file], NEWEST):
        assert finding.expression in lines[finding.line - 1]


_OBJECTS = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
spec:
  groups:
  - name: a
    rules:
    - alert: Full
      expr: |
        vllm:kv_cache_usage_perc
          > 90
      for: 5m
      keep_firing_for: 5m
---
kind: List
items:
- spec:
    groups:
    - name: b
      rules:
      - record: model_name:vllm_preemptions:rate5m
        expr: rate(vllm:num_preemptions[5m])
"""

_DASHBOARD = """\
{"panels": [{"title": "Row", "type": "row", "panels": [
  {"title": "Cache", "datasource": {"type": "prometheus", "uid": "x"}, "targets": [
    {"expr": "sum(vllm:gpu_cache_usage_perc{job=~\\"$job\\"})"},
    {"expr": "vllm:kv_cache_usage_perc"},
    {"expr": "rate({app=\\"vllm\\"} |= `x` [5m])", "datasource": {"type": "loki"}}
  ]}
]}],
"templating": {"list": [
  {"type": "query", "name": "model", "query": "label_values(vllm:num_preemptions, model_name)"}
]}}
"""


def _found(tmp_path: Path, name: str, text: str) -> list[tuple[int, str, str, str | None]]:
    file = tmp_path / name
    file.write_text(text)
    found = check_files([file], NEWEST)
    return [(one.line, one.rule, one.code.value, one.corrected) for one in found]


def test_objects_of_kubernetes(tmp_path: Path) -> None:
    assert _found(tmp_path, "rules.yaml", _OBJECTS) == [
        (8, "Full", "percent_against_ratio", "vllm:kv_cache_usage_perc > 0.9"),
        (
            21,
            "model_name:vllm_preemptions:rate5m",
            "missing_total",
            "rate(vllm:num_preemptions_total[5m])",
        ),
    ]


def test_dashboard(tmp_path: Path) -> None:
    corrected = 'max(vllm:kv_cache_usage_perc{job=~"$job"})'
    assert _found(tmp_path, "board.json", _DASHBOARD) == [
        (3, "Cache", "removed_metric", corrected),
        (3, "Cache", "summed_ratio", corrected),
        (9, "$model", "missing_total", "vllm:num_preemptions_total"),
    ]


def test_name_that_a_rule_of_another_file_records_is_known(tmp_path: Path) -> None:
    records = tmp_path / "records.yml"
    records.write_text("groups:\n- name: a\n  rules:\n  - record: vllm:busy\n    expr: up\n")
    uses = tmp_path / "uses.yml"
    uses.write_text("groups:\n- name: a\n  rules:\n  - record: a:b:c\n    expr: max(vllm:busy)\n")
    assert [one.code for one in check_files([uses], NEWEST)] == [Code.UNKNOWN_METRIC]
    assert check_files([uses, records], NEWEST) == ()


def _bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return "\n".join(lines)


def _rules_bomb() -> str:
    groups = ", ".join(["{name: x, rules: *r}"] * 6000)
    return f"r: &r\n- {{alert: A, expr: 'vllm:tokens_total > 0'}}\ngroups: [{groups}]\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("just a text", 1),
        ("groups:\n{{- range .Values.rules }}\n- name: x\n", 3),
        ("groups:\n- name: x\n  rules:\n  - alert: A\n", 4),
        ("groups:\n- name: x\n  rules:\n  - [1, 2]\n", 4),
        ("groups: &g\n- name: x\n  rules: *g\n", 2),
        ("groups:\n- name: \0x\n", 2),
        ("[" * 50_000, 1),
        (_bomb(), 1),
        (_rules_bomb(), 2),
        ('{"panels": [\n{"expr": }\n]}', 2),
        ('{"panels": ' + "[" * 100_000, 1),
        ('{"nothing": 1}', 1),
        (b"groups:\n- name: \xff\n", 2),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(
    text: str | bytes, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = io.StringIO()
    assert run([str(file)], None, False, out) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vllm-sidecar: {file}:{line}: ")
    assert said.count("\n") == 1
    assert out.getvalue() == ""


def test_missing_and_huge_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = tmp_path / "huge.yml"
    huge.write_text("x" * (3 * 1024 * 1024))
    for path in (tmp_path / "none.yml", tmp_path, huge):
        assert run([path], None, False, io.StringIO()) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"vllm-sidecar: {path}: ")
        assert said.count("\n") == 1
    with pytest.raises(RuleFileError, match="No such file"):
        check_files([tmp_path / "none.yml"], NEWEST)


def test_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(
        "groups:\n- name: a\n  rules:\n"
        "  - record: a:b:c\n    expr: max(vllm:gpu_cache_usage_perc)\n"
    )
    assert run([file], "0.8.5", False, io.StringIO()) == 0
    assert run([file], "v0.33.0", False, io.StringIO()) == 1
    assert run([file], "newest", False, io.StringIO()) == 2
    assert "--vllm-version" in capsys.readouterr().err


def test_json_is_stable() -> None:
    texts = []
    for _ in range(2):
        out = io.StringIO()
        assert run([_RULES / "rules-wild-bad.yml"], None, True, out) == 1
        texts.append(out.getvalue())
    assert texts[0] == texts[1]
    document = json.loads(texts[0])
    assert list(document) == ["vllm_version", "files", "counts", "findings"]
    assert document["vllm_version"] == "0.33.0"
    assert document["counts"]["error"] == 25
    assert list(document["findings"][0]) == [
        "file",
        "line",
        "rule",
        "code",
        "severity",
        "message",
        "expression",
        "corrected",
        "reason",
    ]


def test_text_names_place_fault_and_correction(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(
        'groups:\n- name: a\n  rules:\n  - alert: "Full\\e[31m"\n'
        "    expr: vllm:kv_cache_usage_perc > 90\n    for: 1m\n    keep_firing_for: 1m\n"
    )
    out = io.StringIO()
    assert run([file], None, False, out) == 1
    assert out.getvalue() == (
        f"{file}:5: Full?[31m\n"
        "  error percent_against_ratio: The value is a share from 0 to 1, so that 90 is never "
        "passed. 90 % is 0.9.\n"
        "  better: vllm:kv_cache_usage_perc > 0.9\n"
        "\n"
        "1 file checked against vLLM 0.33.0: 1 error, 0 warning, 0 info.\n"
    )
