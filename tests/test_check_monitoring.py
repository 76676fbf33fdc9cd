"""The check of the monitoring files must notice what it is there for.

A run takes seconds, so each case damages a copy of the files in several places at once, and
expects a line for every one of them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = "tools/check_monitoring.py"
ALERTS = "deploy/prometheus/rules/alerts.yml"
SIDECAR_ALERTS = "deploy/prometheus/rules/alerts-sidecar.yml"
SLACK = "deploy/alertmanager/examples/slack.yml"
ALERTMANAGER = "deploy/alertmanager/alertmanager.yml"
RUNBOOKS = "docs/runbooks.md"

needs_the_tools = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("amtool") is None,
    reason="promtool and amtool are not installed",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that the check reads, and the sidecar whose metrics they speak of."""
    for folder in ("deploy/prometheus", "deploy/alertmanager", "tests/rules", "sidecar"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in (SCRIPT, "tools/rule_files.py", "tools/alert_words.py", RUNBOOKS):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def check(root: Path, **environment: str) -> tuple[int, list[str]]:
    """Run the check of that copy: its exit status, and what it printed that is not `ok`."""
    done = subprocess.run(
        [sys.executable, "-B", str(root / SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert done.stderr == ""
    return done.returncode, [line for line in done.stdout.splitlines() if line[:2] != "ok"]


def damage(root: Path, file: str, old: str, new: str) -> None:
    """Replace the first occurrence of a text, which must be there."""
    text = (root / file).read_text(encoding="utf-8")
    assert old in text
    (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")


@needs_the_tools
def test_the_files_as_they_are_pass() -> None:
    assert check(ROOT) == (0, [])


@needs_the_tools
def test_notices_what_people_would_read_or_never_get(copy: Path) -> None:
    damage(copy, ALERTS, "--watermark 0.3", "a watermark")
    damage(copy, ALERTS, "Until the restart", "Or use eager mode. Until the restart")
    damage(copy, ALERTS, "requests wait for it.", "requests wait for it")
    damage(copy, SIDECAR_ALERTS, "#vllmsidecardown", "#down")
    damage(copy, SIDECAR_ALERTS, "expr: vector(1)", "expr: vector(1)\n        for: 1m")
    damage(copy, RUNBOOKS, "## VllmSidecarDataStale", "## Old data")
    damage(copy, ALERTMANAGER, "VllmKvCacheSaturated", "VllmKvCacheFull")
    damage(copy, ALERTMANAGER, 'severity = "critical"', 'severity = "fatal"')
    damage(copy, SLACK, "api_url_file: /run/secrets/slack_url", "api_url: https://example.org/T0")

    status, lines = check(copy)

    assert status == 1
    told = "\n".join(lines)
    for complaint in (
        "FAIL  VllmPreemptionSpike (warning): patience, texts, runbook: "
        "the description lacks '--watermark 0.3', or has it too early",
        "FAIL  VllmPreemptionSpike (critical): patience, texts, runbook: "
        "the description says 'eager'",
        "FAIL  VllmKvCacheSaturated (warning): patience, texts, runbook: "
        "the summary is not one fixed sentence with a full stop",
        "FAIL  VllmSidecarDown (critical): patience, texts, runbook: "
        "runbook_url does not end in #vllmsidecardown",
        "FAIL  VllmSidecarDataStale (warning): patience, texts, runbook: "
        "runbooks.md has no heading VllmSidecarDataStale",
        "FAIL  VllmSidecarWatchdog (none): patience, texts, runbook: for is missing, or",
        "FAIL  alertmanager.yml: names only alerts that exist: there is no alert VllmKvCacheFull",
        "FAIL  slack.yml: no secret in it: api_url belongs into a file",
        "FAIL  VllmPreemptionSpike (critical): route: ",
        "FAIL  any other alert (critical): route: ",
    ):
        assert complaint in told


@needs_the_tools
def test_notices_what_alerts_would_do(copy: Path) -> None:
    damage(copy, ALERTS, 'usage_peak_ratio{window="60s"} >= 0.9', "usage_ratio >= 0.1")
    damage(copy, SIDECAR_ALERTS, '{source="nvml"}', '{origin="nvml"}')
    damage(copy, SIDECAR_ALERTS, "{{ $value | humanizeDuration }}", "{{ query $value }}")

    status, lines = check(copy)

    assert status == 1
    told = "\n".join(lines)
    for complaint in (
        "FAIL  preemption.test.yml: promtool test rules: name: ",
        "FAIL  sidecar.test.yml: promtool test rules: name: NVML is lost",
        "FAIL  each alert fires in a test and renders: a description has a template that",
        "vllm_sidecar_source_up has no label origin",
    ):
        assert complaint in told


@needs_the_tools
def test_notices_what_the_programs_would_refuse(copy: Path) -> None:
    damage(copy, SIDECAR_ALERTS, "humanizeDuration", "humanizeHours")
    damage(copy, ALERTS, "kv_cache_saturated_seconds_total", "kv_cache_filled_seconds_total")
    damage(copy, ALERTMANAGER, "repeat_interval: 4h", "repeat_interval: often")

    status, lines = check(copy)

    assert status == 1
    told = "\n".join(lines)
    for complaint in (
        "FAIL  prometheus.yml: promtool check config: ",
        "FAIL  alerts-sidecar.yml: promtool check rules: ",
        "alerts.yml uses vllm_sidecar_kv_cache_filled_seconds_total, which is not declared",
        "FAIL  alertmanager.yml: amtool check-config: ",
    ):
        assert complaint in told


@needs_the_tools
def test_refuses_a_layout_that_it_cannot_read(copy: Path) -> None:
    damage(copy, SIDECAR_ALERTS, "          severity: none", "         severity: none")

    status, lines = check(copy)

    assert status == 1
    assert lines[0].startswith("FAIL  alerts-sidecar.yml:")
    assert lines[0].endswith(": cannot read 'severity: none'")


@needs_the_tools
def test_notices_an_alert_that_no_test_fires(copy: Path) -> None:
    (copy / "tests/rules/kv_cache.test.yml").unlink()

    assert check(copy) == (
        1,
        [
            "FAIL  each alert fires in a test and renders: "
            "VllmKvCacheSaturated (warning) fires in no test",
            "1 failed",
        ],
    )


def test_says_which_packages_bring_the_missing_tools() -> None:
    assert check(ROOT, PATH="/nowhere") == (
        2,
        [
            "FAIL  promtool and amtool not found; "
            "on Debian: apt-get install prometheus prometheus-alertmanager"
        ],
    )
