"""`diagnose` and `explain` as commands, judged by what they print and how they end."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command import Outcome, invoke, refuse
from recorded import RECORDINGS

LOGS = RECORDINGS.parent / "logs"
PAGES = RECORDINGS.parent / "pages"
VERDICT_FIELDS = {
    "code",
    "severity",
    "confidence",
    "scope",
    "summary",
    "from",
    "to",
    "evidence",
    "advice",
    "avoid",
    "missing",
}


def judged(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Verdicts of a `--json` document by code; the document has the promised form."""
    document = json.loads(outcome.stdout)
    for verdict in document["verdicts"]:
        assert set(verdict) == VERDICT_FIELDS
        assert set(verdict["scope"]) == {"model_name", "engine", "gpu"}
        for item in verdict["evidence"]:
            assert set(item) == {"name", "value", "unit", "threshold"}
        for item in verdict["advice"]:
            assert set(item) == {"flag", "from", "to", "expect", "why"}
        for item in verdict["avoid"]:
            assert set(item) == {"flag", "why"}
    return {verdict["code"]: verdict for verdict in document["verdicts"]}


def recording(name: str, *, log: bool = True) -> Outcome:
    arguments = ["diagnose", "--recording", str(RECORDINGS / f"{name}.jsonl.gz"), "--json"]
    if log:
        arguments += ["--log", str(RECORDINGS / f"{name}.vllm.log.gz")]
    return invoke(*arguments)


def test_a_storm_is_told_with_its_arithmetic() -> None:
    outcome = recording("preempt-storm")
    assert outcome.status == 1
    found = judged(outcome)["kv_exhausted"]
    assert found["severity"] == "critical"
    assert found["from"] < found["to"]
    advised = {item["flag"]: item for item in found["advice"]}
    assert 28 <= int(advised["--max-num-seqs"]["to"]) <= 45
    assert "--block-size" not in advised
    assert next(iter(advised)) == "--gpu-memory-utilization"
    assert found["missing"] == []


def test_without_the_log_the_report_says_what_it_would_add() -> None:
    assert "log" in judged(recording("preempt-storm", log=False))["kv_exhausted"]["missing"]


def test_a_quiet_recording_ends_well() -> None:
    outcome = recording("graphs-32-4-0")
    assert outcome.status == 0
    found = judged(outcome)
    assert {"memory_held", "over_reserved"} <= set(found)
    assert [item["flag"] for item in found["over_reserved"]["advice"]] == ["none"]
    shown = {item["name"]: item["value"] for item in found["over_reserved"]["evidence"]}
    assert shown["gpu_memory_utilization_target"] == pytest.approx(0.16)


@pytest.mark.parametrize(
    ("name", "code", "flag"),
    [
        ("fail-neighbour", "not_enough_free", "--gpu-memory-utilization"),
        ("fail-no-kv", "no_kv_memory", "--gpu-memory-utilization"),
        ("runtime-oom", "runtime_oom", "neighbour"),
    ],
)
def test_explain_names_the_cause(name: str, code: str, flag: str) -> None:
    outcome = invoke("explain", str(RECORDINGS / f"{name}.vllm.log.gz"), "--json")
    assert outcome.status == 1
    found = judged(outcome)
    assert flag in [item["flag"] for item in found[code]["advice"]]
    start = json.loads(outcome.stdout)["start"]
    assert start["outcome"] == code
    assert start["vllm_version"] == "0.25.0"


def test_explain_reads_standard_input() -> None:
    from typer.testing import CliRunner

    from sidecar.cli import application

    text = (LOGS / "log-v0.9.1-freemem-31-of-47.log").read_text("utf-8")
    result = CliRunner().invoke(application, ["explain", "-"], input=text)
    assert result.exit_code == 1
    assert "not_enough_free" in result.stdout
    assert "0.95 -> 0.65" in result.stdout


def test_a_good_log_ends_well() -> None:
    outcome = invoke("explain", str(RECORDINGS / "graphs-32-4-0.vllm.log.gz"))
    assert outcome.status == 0
    assert "111.61 GiB" in outcome.stdout
    assert "\x1b" not in outcome.stdout  # nobody looks: no colours


def page(tmp_path: Path, name: str, *, preemptions: float, finished: float) -> Path:
    """A saved page of a full server."""
    label = '{engine="0",model_name="m"}'
    path = tmp_path / name
    path.write_text(
        f"vllm:kv_cache_usage_perc{label} 0.99\n"
        f"vllm:num_requests_running{label} 20\nvllm:num_requests_waiting{label} 9\n"
        f"vllm:num_preemptions_total{label} {preemptions}\n"
        f"vllm:prompt_tokens_total{label} {100 * finished}\n"
        f"vllm:generation_tokens_total{label} {200 * finished}\n"
        f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} '
        f"{finished}\n",
        "utf-8",
    )
    return path


def test_one_page_tells_the_moment_and_two_tell_rates(tmp_path: Path) -> None:
    first = page(tmp_path, "a.prom", preemptions=10, finished=100)
    second = page(tmp_path, "b.prom", preemptions=40, finished=110)
    os.utime(first, (1_000, 1_000))
    os.utime(second, (1_010, 1_010))
    alone = judged(invoke("diagnose", "--from-file", str(first), "--json"))
    assert "kv_exhausted" not in alone
    assert alone["kv_pressure"]["confidence"] == "low"
    assert "rates" in alone["kv_pressure"]["missing"]
    both = judged(
        invoke("diagnose", "--from-file", str(first), "--from-file", str(second), "--json")
    )
    assert both["kv_exhausted"]["severity"] == "warning"


def test_a_real_idle_page_is_idle() -> None:
    outcome = invoke("diagnose", "--from-file", str(PAGES / "vllm-0.32.0-cpu-idle.prom"))
    assert outcome.status == 0
    assert "idle" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("diagnose", "--from-file", "nowhere.prom"), "nowhere.prom: cannot be read"),
        (("diagnose", "--recording", "nowhere.gz"), "nowhere.gz: no such file"),
        (("diagnose", "--recording", "a", "--from-file", "b"), "give one of them"),
        (("explain", "nowhere.log"), "nowhere.log"),
        (("diagnose", "--log", "nowhere.log", "--from-file", "x.prom"), "nowhere.log"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refuse(*arguments)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_of_a_recording_that_was_cut_off_what_is_there_is_judged(
    flags: list[str], tmp_path: Path
) -> None:
    whole = (RECORDINGS / "preempt-storm.jsonl.gz").read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    outcome = invoke("diagnose", "--recording", str(cut), *flags)
    assert outcome.status == 2
    assert "kv_exhausted" in outcome.stdout
    assert outcome.stderr.startswith(f"vllm-sidecar: {cut}: ends in the middle, after line ")
    assert outcome.stderr.endswith("; what precedes it was judged\n")
    assert outcome.stderr.count("\n") == 1


def test_of_a_recording_without_a_whole_poll_nothing_is_judged(tmp_path: Path) -> None:
    lines = gzip.decompress((RECORDINGS / "preempt-storm.jsonl.gz").read_bytes()).splitlines(True)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(lines[0] + b"{}\n"))
    assert "line 2: not a poll" in refuse("diagnose", "--recording", str(cut))


def test_pages_without_an_order_are_refused(tmp_path: Path) -> None:
    first = page(tmp_path, "a.prom", preemptions=1, finished=1)
    os.utime(first, (1_000, 1_000))
    again = ("diagnose", "--from-file", str(first), "--from-file", str(first))
    assert "--interval-seconds" in refuse(*again)
    assert invoke(*again, "--interval-seconds", "10").status in (0, 1)
