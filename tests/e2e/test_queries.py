"""Every query of every dashboard and rule, asked of a real Prometheus that holds the recordings.

A query that is valid may still match nothing: a label that is called otherwise, a join that finds
no partner. So each must return data, or stand on a list with the reason why it cannot.

    pytest tests/e2e/test_queries.py -m e2e -s
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import check_dashboards
import pytest
from recorded_prometheus import SLOW_MOTION, Recorded, recorded_prometheus
from recorded_series import open_metrics, scrapes
from rule_files import Rule, read_rules

from sidecar.model import GpuReport, Page, Poll

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = {
    path.name: json.loads(path.read_text("utf-8"))
    for path in sorted((ROOT / "dashboards").glob("*.json"))
}
RULES = [
    rule
    for path in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    for rule in read_rules(path)
]
AS_RECORDED_SECONDS, ALL_SECONDS = 160, 4620
"""The recordings at their own speed, and to the end of the longest in slow motion."""
EVALUATION_SECONDS = 15

NO_DATA = {
    'ALERTS{job=~"$job", instance=~"$instance", alertstate="firing"}': (
        "written by Prometheus while it evaluates alerts, which a filled data folder never did"
    ),
    "kv_cache_held_while_idle_ratio": "no recording has a leak of blocks",
    'part="activations"': "the recorded release does not print it",
}
"""Queries that contain one of these return nothing from the recordings, and why."""

QUIET = {
    "VllmBlind": "every recorded page was there or refused",
    "VllmGpuMemoryGrowth": "no recording lasts half an hour",
    "VllmHeadroomLow": "the card that ran full had nothing to serve",
    "VllmHostMemoryLow": "no recording has the host's memory",
    "VllmKvCacheSaturated": "the recorded storm lasts half a minute",
    "VllmKvFragmented": "no recording has a full cache of short requests",
    "VllmKvLeaked": "no recording has a leak of blocks",
    "VllmLoraCapped": "no recording has adapters",
    "VllmOrphan": "no recording has one",
    "VllmSequencesCapped": "no recording has a queue before a cap",
    "VllmSidecarDataStale": "the sidecar polled all the time",
    "VllmSidecarDown": "the sidecar was scraped all the time",
    "VllmStalled": "the recorded pause lasts 14 s",
    "VllmTokenBudgetCapped": "no recording has a queue before a cap",
    "VllmStartFailed (warning)": "no recording has one",
    "VllmSidecarSourceDown (warning)": "NVML answered all the time",
}
"""Alerts, by name or title, whose expression is never true on the recordings, and why."""


DAMAGED = "damaged"


def _damaged(poll: Poll) -> Poll:
    """A page without what much is derived from, a value that cannot be, and GPUs in trouble."""
    vllm, gpus = poll.vllm, poll.gpus
    if isinstance(vllm, Page):
        lost = r"^vllm:(kv_cache_usage_perc|num_preemptions|num_requests)\w*\{.*\n"
        text = re.sub(lost, "", vllm.text, flags=re.MULTILINE)
        text = re.sub(r"^(vllm:generation_tokens_total\{.*\}) .*$", r"\1 NaN", text, flags=re.M)
        vllm = replace(vllm, text=text)
    if isinstance(gpus, GpuReport):
        unread = (
            replace(gpu, memory=None, utilization_ratio=None, error="GPU is lost")
            for gpu in gpus.gpus
        )
        gpus = replace(gpus, gpus=tuple(unread))
    return replace(poll, vllm=vllm, gpus=gpus)


def _more(start: int) -> Iterable[str]:
    return open_metrics(scrapes("lowuse-c2", change=_damaged), DAMAGED, start)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_prometheus(tmp_path_factory.mktemp("prometheus"), _more) as running:
        yield running


def _answers(recorded: Recorded, expression: str) -> bool:
    """Whether any recording has data for it, at its own speed or in slow motion."""
    return bool(
        recorded.range(expression, AS_RECORDED_SECONDS)
        or recorded.range(expression, ALL_SECONDS, step=EVALUATION_SECONDS)
    )


def _asked(expression: str) -> str:
    for macro, text in (("$__rate_interval", "20s"), ("$__range", "160s")):
        expression = expression.replace(macro, text)
    return check_dashboards.substituted(expression)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_of_a_dashboard_returns_data(
    name: str, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    document = DASHBOARDS[name]
    queries = dict(check_dashboards.expressions(document))
    with_data, wrong = 0, []
    for place, expression in queries.items():
        excused = any(text in expression for text in NO_DATA)
        answered = _answers(recorded, _asked(expression))
        with_data += answered
        if answered == excused:
            wrong.append(f"{place}: {'data after all' if answered else 'no data'}: {expression}")
    panels = [panel for panel in check_dashboards.panels(document) if panel["type"] != "row"]
    with capsys.disabled():
        print(f"\n{name}: {with_data} of {len(queries)} queries of {len(panels)} panels, ", end="")
        print("variables and marks returned data")
    assert wrong == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_values(name: str, recorded: Recorded) -> None:
    for variable in DASHBOARDS[name]["templating"]["list"]:
        wanted = check_dashboards.LABEL_VALUES.fullmatch(variable["query"])
        if wanted is not None:
            found = recorded.range(_asked(wanted[1]), AS_RECORDED_SECONDS)
            assert all(series["metric"].get(wanted[2]) for series in found), variable["name"]


def test_every_recording_rule_returns_data(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = [rule for rule in RULES if rule.kind == "record"]
    empty = [rule.name for rule in rules if not _answers(recorded, rule.fields["expr"])]
    with capsys.disabled():
        print(f"\n{len(rules) - len(empty)} of {len(rules)} recording rules returned data")
    assert empty == []


def _fired(recorded: Recorded, rule: Rule) -> dict[str, bool]:
    """Instances for which the rule's expression was ever true, and whether for long enough."""
    patience = _seconds(rule.fields.get("for", "0s"))
    found: dict[str, bool] = {}
    for series in recorded.range(rule.fields["expr"], ALL_SECONDS, step=EVALUATION_SECONDS):
        instance = series["metric"].get("instance", "")
        began = previous = float("-inf")
        for at, _ in series["values"]:
            began = at if at - previous > EVALUATION_SECONDS else began
            previous = at
            found[instance] = found.get(instance, False) or at - began >= patience
    return found


def test_alerts_over_the_recordings(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    fired: dict[str, set[str]] = {}
    true: dict[str, set[str]] = {}
    for rule in RULES:
        if rule.kind == "alert" and rule.name != "VllmSidecarWatchdog":
            found = _fired(recorded, rule)
            true[rule.title] = set(found)
            fired[rule.title] = {name for name, long in found.items() if long} - {DAMAGED}
    never = {title for title, instances in true.items() if not instances}
    with capsys.disabled():
        print(f"\n{len(true) - len(never)} of {len(true)} alerts were true on some recording")
    assert {title for title in never if not _is_listed(title)} == set()
    assert {title for title in true if _is_listed(title)} <= never
    told = {title: instances for title, instances in fired.items() if instances}
    assert told.pop("VllmStartFailed (critical)") == {"fail-neighbour", "fail-no-kv"}
    # Every recording ends with the server stopped, which in slow motion takes minutes.
    slow = {f"{name}-slow" for name in SLOW_MOTION}
    assert told.pop("VllmSidecarSourceDown (critical)", set()) <= slow
    assert told == {
        "VllmOutOfMemory (critical)": {"runtime-oom"},
        "VllmPreemptionSpike (warning)": {"preempt-storm-slow"},
        "VllmPreemptionSpike (critical)": {"preempt-storm-slow"},
    }


def _is_listed(title: str) -> bool:
    return title in QUIET or title.partition(" ")[0] in QUIET


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]
