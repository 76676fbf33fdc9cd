"""Dashboards, alerts and verdicts say the same: the same lines, the same codes, the same advice."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import alert_lines
import check_dashboards
import pytest
import verdict_words
from synthetic import engine, gpu, history, snapshot

from sidecar.judge import Judge
from sidecar.model import GpuMemory
from sidecar.settings import Thresholds
from sidecar.verdicts import RULES
from sidecar.verdicts.start import SEVERITIES

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS: dict[str, dict[str, Any]] = {
    path.name: json.loads(path.read_text("utf-8")) for path in (ROOT / "dashboards").glob("*.json")
}
CODES = {"healthy", "idle", *(rule.code for rule in RULES), *SEVERITIES}


def test_lines_are_where_the_alerts_draw_them() -> None:
    files = sorted((ROOT / "deploy/prometheus/rules").glob("alerts*.yml"))
    flat = " ".join(" ".join(file.read_text("utf-8") for file in files).split())
    for text in (
        f"preemptions_per_finished_request >= {alert_lines.PREEMPTED_PER_FINISHED}",
        f'preemptions_per_second{{window="60s"}} >= {alert_lines.PREEMPTED_PER_SECOND}',
        f'kv_cache_usage_peak_ratio{{window="60s"}} >= {alert_lines.KV_FULL}',
        f"last_success_timestamp_seconds > {alert_lines.OLD_SECONDS}",
        f"at least {alert_lines.KV_SATURATED:.0%}".replace("%", " %"),
    ):
        assert text in flat, text


def test_default_settings_draw_the_same_lines() -> None:
    limits = Thresholds()
    assert limits.kv_underused_ratio == alert_lines.KV_UNDERUSED
    assert limits.kv_saturated_ratio == alert_lines.KV_SATURATED
    assert limits.preemption_kv_usage_ratio == alert_lines.KV_FULL
    assert limits.preemptions_per_finished == alert_lines.PREEMPTED_PER_FINISHED
    assert limits.throughput_loss_ratio == 1 - alert_lines.THROUGHPUT_LEFT
    assert limits.fragmentation_ratio == alert_lines.FRAGMENTED


def test_the_verdict_on_the_host_draws_the_same_lines() -> None:
    assert Thresholds().host_warning_ratio == alert_lines.HOST_LOW
    assert Thresholds().host_critical_ratio == alert_lines.HOST_CRITICAL


@pytest.mark.parametrize(("share_of_the_line", "holds"), [(0.98, True), (1.02, False)])
def test_the_verdict_on_headroom_draws_the_same_line(share_of_the_line: float, holds: bool) -> None:
    total = 80 * 2**30
    free = int(total * alert_lines.HEADROOM_LOW * share_of_the_line)
    card = replace(gpu(79, {1: 79 * 2**30}), memory=GpuMemory(total, total - free, free, 0))
    judge, seen = Judge(), history()
    verdicts = set()
    for second in range(100, 130):
        serving = engine(running=4.0, generation_tokens_total=float(second))
        polled = snapshot(float(second), serving, gpus=[card])
        seen.add(polled)
        verdicts = {verdict.code for verdict in judge.judge(polled, seen)}
    assert ("headroom_low" in verdicts) == holds


def test_each_verdict_has_its_line_of_advice() -> None:
    assert set(verdict_words.WHAT_TO_DO) == CODES
    for text in verdict_words.WHAT_TO_DO.values():
        assert text.endswith((".", "?"))
        assert len(text) <= 60


@pytest.mark.parametrize("name", DOCUMENTS)
def test_verdicts_asked_for_exist(name: str) -> None:
    for _, expression in check_dashboards.expressions(DOCUMENTS[name]):
        for wanted in re.findall(r'\bcode=~?"([^"]+)"', expression):
            assert set(wanted.split("|")) <= CODES


def test_the_first_row_names_the_verdict_and_says_what_to_do() -> None:
    shown = check_dashboards.panels(DOCUMENTS["vllm-memory.json"])
    panels = {panel["id"]: panel for panel in shown}
    assert panels[110]["gridPos"]["y"] == panels[111]["gridPos"]["y"] == 1
    looks = {
        override["matcher"]["options"]: {
            each["id"]: each["value"] for each in override["properties"]
        }
        for override in panels[111]["fieldConfig"]["overrides"]
    }
    (words,) = looks["what_to_do"]["mappings"]
    assert words["options"]["kv_exhausted"]["text"].startswith("More KV cache")
    assert "docs/verdicts.md#" in looks["code"]["links"][0]["url"]
    assert panels[151]["type"] == "state-timeline"


def test_each_verdict_is_explained_where_the_table_leads() -> None:
    headings = re.findall(
        r"^### (\w+)$", (ROOT / "docs" / "verdicts.md").read_text("utf-8"), re.MULTILINE
    )
    assert set(headings) >= CODES
