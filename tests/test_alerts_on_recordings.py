"""The alert rules on recordings of a real server: storms and deaths fire, everything else is quiet.

A recording lasts a minute or two and most alerts wait for longer. So each is judged twice: at the
speed at which it happened, where a quiet one must not even make an alert wait (no expression is
true at any evaluation); and eight times as slow, which stretches its troubles over the minutes
that `for` asks for.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from alert_replay import RULES, Alert, alerts
from recorded_series import NAMES
from rule_files import read_rules

from sidecar.verdicts import RULES as VERDICTS
from sidecar.verdicts.start import SEVERITIES

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
SLOWER = 8.0

SPIKE, COLLAPSE = ("VllmPreemptionSpike", "warning"), ("VllmPreemptionSpike", "critical")
NEIGHBOUR, FULL = ("VllmCoTenant", "warning"), ("VllmCoTenant", "critical")
DOWN, DIED = ("VllmSidecarSourceDown", "critical"), ("VllmOutOfMemory", "critical")
FAILED, STALLED = ("VllmStartFailed", "critical"), ("VllmStalled", "critical")

TRUE_AT_SOME_TIME: dict[str, set[Alert]] = {
    "preempt-storm": {SPIKE},
    "neighbour-grows": {NEIGHBOUR},
    "runtime-oom": {NEIGHBOUR, FULL, DIED},
    "fail-neighbour": {FAILED},
    "fail-no-kv": {FAILED},
}
"""What is pending or fires at the speed at which it happened; all others are quiet."""

FIRE_WHEN_IT_LASTS: dict[str, set[Alert]] = {
    "preempt-storm": {SPIKE, COLLAPSE},
    "neighbour-grows": {NEIGHBOUR},
    "runtime-oom": {NEIGHBOUR, FULL, DIED, DOWN},
    "fail-neighbour": {FAILED},
    "fail-no-kv": {FAILED},
    # Away for six minutes rather than for three quarters of one.
    "kill-restart": {DOWN},
    # Paused for two minutes without a log or an endpoint that says so.
    "pause-keep": {STALLED},
}


@needs_promtool
@pytest.mark.parametrize("name", NAMES)
def test_what_is_true_as_it_happened(name: str, tmp_path: Path) -> None:
    found = {alert for states in alerts(name, tmp_path).values() for alert in states}
    assert found == TRUE_AT_SOME_TIME.get(name, set())


@needs_promtool
@pytest.mark.parametrize("name", NAMES)
def test_what_fires_when_it_lasts(name: str, tmp_path: Path) -> None:
    found = {
        alert
        for states in alerts(name, tmp_path, slower=SLOWER).values()
        for alert, state in states.items()
        if state == "firing"
    }
    assert found == FIRE_WHEN_IT_LASTS.get(name, set())


# -------------------------------------------------------------------------------------------------
# Every verdict of weight has its alert

OTHERWISE_SAID = {
    ("vllm_down", "critical"): "VllmSidecarSourceDown, which asks the source itself",
    ("kv_exhausted", "warning"): "VllmPreemptionSpike (warning), whose conditions include it",
}


def _grave() -> set[tuple[str, str]]:
    said = {(rule.code, severity) for rule in VERDICTS for severity in rule.severities}
    said |= {(code, severity) for code, severities in SEVERITIES.items() for severity in severities}
    return {(code, severity) for code, severity in said if severity != "info"}


def _alerted() -> set[tuple[str, str]]:
    pairs = set()
    for path in RULES:
        for rule in read_rules(path):
            for matchers in re.findall(r"vllm_sidecar_verdict\{([^}]*)\}", rule.fields["expr"]):
                given = dict(re.findall(r'(\w+)=~?"([^"]*)"', matchers))
                if rule.kind == "alert" and "severity" in given:
                    pairs |= {
                        (code, severity)
                        for code in given["code"].split("|")
                        for severity in given["severity"].split("|")
                    }
    return pairs


def test_every_warning_and_critical_verdict_has_an_alert() -> None:
    assert _grave() - _alerted() == set(OTHERWISE_SAID)


def test_alerts_wait_for_verdicts_that_exist() -> None:
    assert _alerted() <= _grave()


def test_no_alert_looks_at_memory_in_use_or_at_low_use() -> None:
    for path in RULES:
        for rule in read_rules(path):
            if rule.kind == "alert":
                for name in ("memory_used", "underused", "memory_held", "over_reserved"):
                    assert name not in rule.fields["expr"], rule.title
