"""What a real Alertmanager mutes, with the repository's configuration.

pytest tests/e2e/test_inhibition.py -m e2e
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .servers import Server, alertmanager

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

Labels = dict[str, str]

ENGINE = {"model_name": "llama", "engine": "0"}
OTHER_ENGINE = {"model_name": "llama", "engine": "1"}
ANSWER_SECONDS = 10.0


def alert(name: str, severity: str = "warning", **labels: str) -> Labels:
    return {"alertname": f"Vllm{name}", "severity": severity, **labels}


SPIKE, COLLAPSE = alert("PreemptionSpike", **ENGINE), alert("PreemptionSpike", "critical", **ENGINE)
SATURATED = alert("KvCacheSaturated", **ENGINE)
DOWN = alert("SidecarSourceDown", "critical", source="vllm")
NVML_DOWN = alert("SidecarSourceDown", source="nvml")
TENANT, CROWDED = alert("CoTenant", gpu="0"), alert("CoTenant", "critical", gpu="0")
WATCHDOG = alert("SidecarWatchdog", "none")

CASES: dict[str, tuple[list[Labels], list[Labels]]] = {
    "a collapse mutes its warning and the full cache, on its own engine": (
        [COLLAPSE, alert("StartFailed", "critical", code="no_kv_memory")],
        [SPIKE, SATURATED],
    ),
    "and not those of another engine": (
        [COLLAPSE, alert("PreemptionSpike", **OTHER_ENGINE), alert("LoraCapped", **ENGINE)],
        [],
    ),
    "a server that is down has no load": (
        [DOWN, TENANT, alert("Orphan", gpu="0"), alert("HostMemoryLow"), NVML_DOWN, WATCHDOG],
        [SPIKE, SATURATED, alert("SequencesCapped", **ENGINE), alert("KvLeaked", **ENGINE)],
    ),
    "why it is down is more than that it is": (
        [alert("OutOfMemory", "critical", code="runtime_oom"), NVML_DOWN],
        [DOWN],
    ),
    "a server that hides its page has no load either": (
        [alert("Blind"), TENANT],
        [alert("TokenBudgetCapped", **ENGINE), alert("MetricsMissing")],
    ),
    "without the sidecar nothing is known, and the watchdog still says so": (
        [alert("SidecarDown", "critical"), WATCHDOG],
        [DOWN, CROWDED, TENANT, alert("SidecarDataStale", source="vllm"), alert("Stalled")],
    ),
    "NVML as a whole mutes a single GPU": ([NVML_DOWN], [alert("GpuUnreadable", gpu="1")]),
    "who took the memory mutes that it is gone, on that card": (
        [CROWDED, alert("HeadroomLow", gpu="1")],
        [TENANT, alert("HeadroomLow", gpu="0")],
    ),
    "a standstill is no matter of load": (
        [alert("Stalled", "critical", **ENGINE), alert("KvFragmented", **ENGINE)],
        [SPIKE, SATURATED, alert("SequencesCapped", **ENGINE)],
    ),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("alertmanager")
    with alertmanager(folder, "http://127.0.0.1:9") as server:
        yield server


@pytest.mark.parametrize("case", CASES)
def test_what_is_muted(case: str, running: Server, tmp_path: Path) -> None:
    told, muted = CASES[case]
    # Each case has a server of its own: what another case left behind is nothing to it.
    instance = f"vllm-{list(CASES).index(case)}:8000"
    fired = [{**labels, "instance": instance} for labels in (*told, *muted)]
    httpx.post(
        f"{running.url}/api/v2/alerts",
        json=[{"labels": labels} for labels in fired],
        trust_env=False,
    ).raise_for_status()
    states = _states(running, instance, len(fired))
    assert {key for key, state in states.items() if state == "suppressed"} == {
        _key({**labels, "instance": instance}) for labels in muted
    }


def _states(running: Server, instance: str, count: int) -> dict[frozenset[tuple[str, str]], str]:
    """The state of each alert of one server, once Alertmanager knows them all."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = httpx.get(
            f"{running.url}/api/v2/alerts",
            params={"filter": f'instance="{instance}"'},
            trust_env=False,
        )
        states = {_key(each["labels"]): str(each["status"]["state"]) for each in answer.json()}
        if len(states) == count or time.monotonic() > deadline:
            return states
        time.sleep(0.1)


def _key(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())
