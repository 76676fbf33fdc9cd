"""What state the server is in, and what takes it from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from synthetic import engine, gpu, snapshot

from sidecar.model import GpuReading, Scope, Snapshot, Verdict
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.serving import ControlRequest, Serving
from sidecar.startlog.start import Start
from sidecar.verdicts import kv_pressure, states
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.states import steady

from .moments import ENGINE, figure, only, polls, said, severity, situation

OWN = gpu(20, {1: 20 * 2**30})
UP = snapshot(0, engine(), gpus=[OWN])


def failing(
    times: Iterable[float],
    reason: str = "refused",
    *,
    health: bool | None = None,
    gpus: GpuReading = OWN,
) -> list[Snapshot]:
    return [replace(snapshot(at, failure=reason, gpus=[gpus]), health=health) for at in times]


def seconds(last: int, first: int = 1) -> list[float]:
    return [float(at) for at in range(first, last + 1)]


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(failing([0.0]), True, id="never up"),
        pytest.param(failing([0.0, 900.0]), True, id="never up for a quarter of an hour"),
        pytest.param(failing([0.0, 901.0]), False, id="never up for longer"),
        pytest.param([UP], False, id="up"),
        pytest.param([UP, *failing(seconds(3))], False, id="gone"),
        pytest.param(failing([0.0], "http_status"), False, id="it answers, so it is no start"),
        pytest.param(failing([0.0], "protocol"), False, id="another program answers"),
        pytest.param(failing([0.0], "other"), True, id="nothing is known of an answer"),
    ],
)
def test_starting(snapshots: list[Snapshot], holds: bool) -> None:
    assert bool(said(states.STARTING, snapshots)) == holds


@pytest.mark.parametrize(
    ("start", "confidence"),
    [
        pytest.param(None, "low", id="no log"),
        pytest.param(Start(), "medium", id="its log shows a start that goes on"),
        pytest.param(Start(started=True), "low", id="its log ends while serving"),
    ],
)
def test_without_a_sign_of_life_the_address_may_be_wrong(
    start: Start | None, confidence: str
) -> None:
    verdict = only(states.STARTING, failing([0.0]), start=start)
    assert verdict.confidence == confidence
    assert ("address" in verdict.summary) == (confidence == "low")


NEXT_LIFE = gpu(5, {9: 5 * 2**30})
EMPTY = gpu(0, {})


@pytest.mark.parametrize(
    ("after", "code"),
    [
        pytest.param(failing([4.0], gpus=EMPTY), "vllm_down", id="nothing there"),
        pytest.param(failing([4.0], gpus=NEXT_LIFE), "starting", id="a new process"),
        pytest.param(
            failing([4.0, 904.0], gpus=NEXT_LIFE), "starting", id="for a quarter of an hour"
        ),
        pytest.param(
            failing([4.0, 905.0], gpus=NEXT_LIFE), "vllm_down", id="for longer: somebody else's"
        ),
        pytest.param(
            [*failing([4.0], gpus=NEXT_LIFE), *failing([5.0], gpus=EMPTY)],
            "vllm_down",
            id="the new process is gone again",
        ),
        pytest.param(failing([4.0]), "vllm_down", id="only the old process"),
    ],
)
def test_a_process_of_its_next_life_is_a_start(after: list[Snapshot], code: str) -> None:
    moment = situation([UP, *failing(seconds(3)), *after])
    found = [v.code for rule in (states.STARTING, states.DOWN) for v in rule.judge(moment)]
    assert found == [code]


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param([UP, *failing(seconds(2))], False, id="refused twice"),
        pytest.param([UP, *failing(seconds(3))], True, id="refused three times"),
        pytest.param([UP, *failing(seconds(3), "closed")], True, id="closed"),
        pytest.param(failing([0.0, 900.0]), False, id="was never up"),
        pytest.param(failing([0.0, 901.0]), True, id="was never up for longer than a start takes"),
        pytest.param(failing([0.0, 901.0], "unresolved"), True, id="its name is not known"),
        pytest.param(failing([0.0, 901.0], "timeout"), True, id="never anything but time-outs"),
        pytest.param(
            failing([0.0, 901.0], "timeout", health=True), False, id="only its page is too slow"
        ),
        pytest.param(failing([0.0, 901.0], "tls"), False, id="somebody answers"),
        pytest.param([UP, *failing(seconds(60), "tls", health=False)], False, id="answers in TLS"),
        pytest.param(
            [UP, *failing(seconds(30), "timeout", health=False)], False, id="29 s of time-outs"
        ),
        pytest.param(
            [UP, *failing(seconds(31), "timeout", health=False)], True, id="30 s of time-outs"
        ),
        pytest.param(
            [UP, *failing(seconds(40), "timeout", health=True)], False, id="time-outs, alive"
        ),
        pytest.param(
            [UP, *failing(seconds(30), "http_status", health=False)], False, id="29 s of errors"
        ),
        pytest.param(
            [UP, *failing(seconds(31), "http_status", health=False)],
            True,
            id="30 s of errors, its own health check too",
        ),
        pytest.param([UP, *failing(seconds(60), "http_status")], False, id="errors"),
        pytest.param([UP, *failing(seconds(3)), snapshot(4, engine())], False, id="back"),
    ],
)
def test_down(snapshots: list[Snapshot], holds: bool) -> None:
    assert (severity(states.DOWN, snapshots) == "critical") == holds


@pytest.mark.parametrize(
    ("start", "holds"),
    [
        pytest.param(None, True, id="no log"),
        pytest.param(Start(), False, id="its log shows a start that goes on"),
        pytest.param(Start(started=True), True, id="its log ends while serving"),
        pytest.param(Start(shut_down=True), True, id="it was stopped"),
        pytest.param(Start(failures=(LogFailure("load_model_oom"),)), True, id="the start failed"),
    ],
)
def test_a_start_that_its_log_shows_takes_as_long_as_it_takes(
    start: Start | None, holds: bool
) -> None:
    moment = failing([0.0, 901.0])
    verdicts = said(states.DOWN, moment, start=start)
    assert [verdict.advice[0].flag for verdict in verdicts] == (["--vllm-url"] if holds else [])
    assert [verdict.confidence for verdict in verdicts] == (["medium"] if holds else [])
    assert bool(said(states.STARTING, moment, start=start)) != holds


def test_down_says_since_when_and_points_to_the_log() -> None:
    verdict = only(states.DOWN, [UP, *failing(seconds(11))])
    assert figure(verdict, "seconds_without_answer") == 10.0
    assert figure(verdict, "reason") == "refused"
    assert "explain" in verdict.advice[0].why
    assert verdict.missing == ("log",)


@pytest.mark.parametrize(
    ("reason", "health", "holds"),
    [
        ("http_status", None, True),
        ("http_status", True, True),
        ("http_status", False, False),
        ("redirect", None, True),
        ("too_large", None, True),
        ("timeout", True, True),
        ("timeout", False, False),
        ("timeout", None, False),
        ("refused", None, False),
        ("tls", False, True),
        ("protocol", False, True),
        ("other", False, False),
    ],
)
def test_blind_is_alive_without_a_page(reason: str, health: bool | None, holds: bool) -> None:
    moment = [UP, *failing([1.0], reason, health=health)]
    assert (severity(states.BLIND, moment) == "warning") == holds


@pytest.mark.parametrize(
    ("reason", "cure"), [("tls", "SIDECAR_VLLM_CA_FILE"), ("protocol", "another program")]
)
def test_who_does_not_speak_as_vllm_does_may_be_somebody_else(reason: str, cure: str) -> None:
    verdict = only(states.BLIND, [UP, *failing([1.0], reason, health=False)])
    assert "alive" not in verdict.summary
    assert verdict.confidence == "medium"
    assert cure in verdict.advice[0].why


def test_a_good_page_is_never_blind() -> None:
    assert not said(states.BLIND, [*failing([0.0], "http_status"), snapshot(1, engine())])


def test_asleep() -> None:
    assert only(states.ASLEEP, polls(1, sleeping=True)).scope == ENGINE
    assert not said(states.ASLEEP, polls(1, sleeping=False))
    assert not said(states.ASLEEP, polls(1, sleeping=None))


@pytest.mark.parametrize(("later", "holds"), [(0, True), (59, True), (60, False)])
def test_restarted_for_a_minute(later: int, holds: bool) -> None:
    lives = [
        snapshot(0, engine(finished_total=9.0)),
        *(snapshot(10.0 + t, engine(), started=8.0) for t in range(later + 1)),
    ]
    assert bool(said(states.RESTARTED, lives)) == holds


def test_the_first_page_is_no_restart() -> None:
    assert not said(states.RESTARTED, polls(1))


def log_with(*paths: str) -> Start:
    requests = tuple(ControlRequest(None, path, "", 200) for path in paths)
    return Start(serving=Serving(control_requests=requests))


@pytest.mark.parametrize(
    ("answer", "start", "holds"),
    [
        (None, None, False),
        (False, None, False),
        (True, None, True),
        (None, log_with("/pause"), True),
        (None, log_with("/pause", "/resume"), False),
    ],
)
def test_paused_needs_evidence(answer: bool | None, start: Start | None, holds: bool) -> None:
    moment = replace(snapshot(0, engine(running=2.0)), paused=answer)
    assert bool(said(states.PAUSED, [moment], start=start)) == holds


def steady_codes(snapshots: list[Snapshot], others: Iterable[Verdict] = ()) -> list[str]:
    return [verdict.code for verdict in steady(situation(snapshots), others)]


INFO = Verdict("memory_held", "info", "high", "")
WARNING = Verdict("seqs_capped", "warning", "high", "")
CRITICAL = Verdict("stalled", "critical", "high", "")


@pytest.mark.parametrize(
    ("fields", "others", "expected"),
    [
        ({}, (), ["idle"]),
        ({"running": 1.0}, (), ["healthy"]),
        ({"waiting": 1.0}, (), ["healthy"]),
        ({"running": 1.0}, (INFO,), ["healthy"]),
        ({"running": 1.0}, (WARNING,), []),
        ({"running": 1.0}, (INFO, CRITICAL), []),
        ({"sleeping": True}, (), []),
        ({"running": None}, (), []),
    ],
)
def test_healthy_and_idle(
    fields: dict[str, float | None], others: tuple[Verdict, ...], expected: list[str]
) -> None:
    assert steady_codes([snapshot(0, engine(**fields))], others) == expected


def test_nothing_is_well_without_a_page() -> None:
    assert steady_codes([UP, *failing([1.0], "timeout")]) == []


def test_health_without_kv_usage_is_a_guess() -> None:
    moment = situation([snapshot(0, engine(running=1.0, kv_usage_ratio=None))])
    assert [verdict.confidence for verdict in steady(moment, ())] == ["low"]


@pytest.mark.parametrize(
    "rule", [states.STARTING, states.DOWN, states.BLIND, states.ASLEEP, states.PAUSED]
)
def test_states_do_not_linger(rule: Rule) -> None:
    assert rule.linger_seconds == 0.0
    assert kv_pressure.RULE.linger_seconds > 0.0


def test_scope_of_a_server_is_empty() -> None:
    assert only(states.DOWN, [UP, *failing(seconds(3))]).scope == Scope()
