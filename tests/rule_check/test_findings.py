"""Every kind of finding: found where it is, not found where it only looks so, and mended."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rule_check.cases import CASES, Case
from rule_check.checking import codes, findings
from sidecar.rule_check.finding import Code
from sidecar.rule_check.macros import DASHBOARD, PLAIN, read

_BY_OTHER_TESTS = {Code.NO_HYSTERESIS, Code.SHADOWED_METRIC}


def _id(case: Case) -> str:
    return f"{case.code}-{case.bad[:40]}"


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_fault_is_found_and_mended(case: Case) -> None:
    found = [one for one in findings(case.bad, case.role, case.version) if one.code is case.code]
    assert found, codes(findings(case.bad, case.role, case.version))
    assert {one.corrected for one in found} == {case.corrected}
    assert all(one.reason for one in found if one.corrected is None)


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_what_only_looks_like_it_is_left_alone(case: Case) -> None:
    version = case.good_version or case.version
    assert case.code not in codes(findings(case.good, case.role, version))


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_correction_has_no_fault_left(case: Case) -> None:
    if case.corrected is None:
        pytest.skip("has no correction")
    again = findings(case.corrected, case.role, case.version)
    assert [one for one in again if one.severity == "error"] == []
    dialect = DASHBOARD if case.role == "panel" else PLAIN
    assert read(case.corrected, dialect).text(read(case.corrected, dialect).tree) == case.corrected


def test_every_code_has_a_case() -> None:
    assert {case.code for case in CASES} | _BY_OTHER_TESTS == set(Code)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_every_correction(tmp_path: Path) -> None:
    corrected = [case.corrected for case in CASES if case.corrected is not None]
    rules = "".join(
        f"  - record: corrected_{index}\n    expr: >-\n      "
        f"{text.replace('$__rate_interval', '5m')}\n"
        for index, text in enumerate(corrected)
    )
    file = tmp_path / "corrected.yml"
    file.write_text(f"groups:\n- name: corrected\n  rules:\n{rules}")
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(corrected)} rules found" in done.stdout


@pytest.mark.parametrize(
    ("waits", "keeps_firing", "severity"),
    [
        (False, False, "warning"),
        (False, True, "warning"),
        (True, False, "info"),
        (True, True, None),
    ],
)
def test_hysteresis(waits: bool, keeps_firing: bool, severity: str | None) -> None:
    found = findings("vllm:kv_cache_usage_perc > 0.9", waits=waits, keeps_firing=keeps_firing)
    assert [(one.code, one.severity) for one in found] == (
        [(Code.NO_HYSTERESIS, severity)] if severity else []
    )


def test_rule_may_not_record_under_a_name_of_vllm() -> None:
    text = "avg by (model_name) (vllm:num_requests_waiting)"
    found = findings(text, "record", rule="vllm:num_requests_waiting")
    assert codes(found) == {"shadowed_metric"}
    assert found[0].corrected is None
    assert not findings(text, "record", rule="model_name:vllm_num_requests_waiting:avg")


def test_alert_that_is_meant_for_idleness_may_fire_on_idleness() -> None:
    text = "rate(vllm:generation_tokens_total[30m]) == 0"
    assert "idle_alarm" in codes(findings(text, rule="VllmThroughputLow"))
    assert "idle_alarm" not in codes(findings(text, rule="VllmServerIdle"))


def test_gpu_memory_alarm_that_has_nothing_to_do_with_vllm_is_a_warning() -> None:
    text = "DCGM_FI_DEV_FB_FREE < 1000"
    assert [one.severity for one in findings(text)] == ["error"]
    assert [one.severity for one in findings(text, is_about_vllm=False)] == ["warning"]


def test_an_unknown_name_next_to_a_known_one_is_only_noted() -> None:
    found = findings("(vllm:kv_cache_usage_perc or vllm_kv_cache_usage_perc) > 0.9")
    assert [(one.code, one.severity) for one in found] == [(Code.WRONG_PREFIX, "info")]


def test_sums_of_single_series_are_only_a_warning() -> None:
    found = findings("sum by (instance, engine) (vllm:kv_cache_usage_perc) > 0.9")
    assert [(one.code, one.severity) for one in found] == [(Code.SUMMED_RATIO, "warning")]


@pytest.mark.parametrize(
    "text",
    [
        "up == 0",
        "vector(1)",
        "node_memory_MemAvailable_bytes < 1e9",
        "sum(rate(http_requests_total[5m])) == 0",
        "histogram_quantile(0.9, sum(other_seconds_bucket)) > 5",
        "vllm:current_qps > 100",
        "vllm:nixl_some_newer_counter_total > 1",
    ],
)
def test_what_is_not_vllms_is_not_judged(text: str) -> None:
    assert findings(text) == []


def test_one_obstacle_keeps_the_whole_correction_back() -> None:
    found = findings("rate(vllm_request_failure_total[5m]) / rate(vllm_request_success_total[5m])")
    assert {one.corrected for one in found} == {None}
    prefix = next(one for one in found if one.code is Code.WRONG_PREFIX)
    assert prefix.reason is not None
    assert "unknown_metric" in prefix.reason
