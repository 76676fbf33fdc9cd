"""The sidecar beside a real vLLM, a real Prometheus and a real Alertmanager.

One run drives the server through its troubles and keeps what everybody said; the tests then look
at that evidence. It takes three to four minutes on two cores, and two or three more the first time,
when the vLLM environment is made. `E2E_VLLM_ENVIRONMENT` names one that is already there.

    pytest tests/e2e -m e2e
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from .load import Load, LoadReport, load_on
from .readings import (
    Published,
    RecordedPoll,
    SnapshotCollector,
    VllmPage,
    engine_series,
    of_engine,
    published_on_page,
    read_recording,
)
from .servers import (
    Server,
    alertmanager,
    free_port,
    prometheus,
    query,
    sidecar,
    vllm_server,
    webhook_receiver,
)
from .vllm_environment import DEFAULT_PATH, VLLM_VERSION, make_environment, make_model

# The first test's time includes the whole run and, once, the installation of vLLM.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

Told = TypeVar("Told")

ALERT = "VllmPreemptionSpike"
ALERT_WITHIN_SECONDS = 180.0
"""The alert must hold for a minute before it fires; the rest is for a busy machine."""

# 24 requests of 560 to 840 tokens want about 130 blocks of 128 tokens in the end: 39 are there.
STORM = Load(clients=24, prompt_tokens=(60, 140), output_tokens=(500, 700))
LIGHT = Load(clients=8, prompt_tokens=(60, 140), output_tokens=(100, 200), seed=2)

POLL_SECONDS = 1.0
FROZEN_SECONDS = 3.5
"""Longer than two polls, shorter than the time after which the sidecar gives up on a page."""
TOKENS_PER_SECOND_AT_MOST = 50_000
"""No CPU serves more than that, however small the model is."""


@dataclass(frozen=True, slots=True)
class Overload:
    """More requests than the KV cache holds, until the alert had come, and the rest after it."""

    load: LoadReport
    alert: str | None
    alert_seconds: float
    firing: float | None
    still_vllm: VllmPage
    still_sidecar: Published


@dataclass(frozen=True, slots=True)
class Death:
    """The server killed in the middle of its work, and what the sidecar said then."""

    at: float
    gone_seconds: float | None
    published: Published
    sidecar_alive: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen and said, in the order in which it happened."""

    overload: Overload
    death: Death
    after_restart: Published
    sidecar_status: int
    snapshots: dict[float, Published]
    snapshot_failures: tuple[str, ...]
    recording: tuple[RecordedPoll, ...]


@pytest.fixture(scope="module")
def evidence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    started = time.monotonic()

    def say(line: str) -> None:
        # Shown as it happens, also when the tests pass: the figures are part of the result.
        with capture.global_and_fixture_disabled():
            print(f"\n[{time.monotonic() - started:6.1f} s] {line}", end="", flush=True)

    python = make_environment(Path(os.environ.get("E2E_VLLM_ENVIRONMENT", DEFAULT_PATH)), say)
    return _drive(python, tmp_path_factory.mktemp("real-vllm"), say)


def _drive(python: Path, folder: Path, say: Callable[[str], None]) -> Evidence:
    """Overload the server, let it rest, kill it, start it again; watch all the while."""
    model = make_model(folder / "tiny")
    record = folder / "run.jsonl.gz"
    port = free_port()
    with contextlib.ExitStack() as stack:
        # The sidecar comes first: a server that is not there yet is nothing special to it.
        watcher = stack.enter_context(sidecar(folder, f"http://127.0.0.1:{port}", record=record))
        webhook = stack.enter_context(webhook_receiver(folder))
        alerts = stack.enter_context(alertmanager(folder / "alertmanager", webhook.url))
        database = stack.enter_context(
            prometheus(
                folder / "prometheus",
                sidecar_port=watcher.port,
                vllm_port=port,
                alertmanager_port=alerts.port,
            )
        )
        say("sidecar, webhook, Alertmanager and Prometheus are ready; starting vLLM")
        with SnapshotCollector.collecting(watcher.url) as collector:
            with vllm_server(python, model, folder, port) as vllm:
                say("vLLM is healthy; overloading it")
                overload = _overload(vllm, watcher, webhook, database, say)
                death = _kill(vllm, watcher, say)
            with vllm_server(python, model, folder, port) as vllm:
                say("vLLM is healthy again on the same port; a light load")
                with load_on(vllm.url, LIGHT):
                    time.sleep(20)
                time.sleep(2 * POLL_SECONDS)
                after_restart = _published(watcher)
        # Its recording is complete only once it has ended.
        sidecar_status = watcher.stop()

    recording = tuple(read_recording(record))
    snapshots = collector.snapshots()
    say(
        f"the sidecar ended with status {sidecar_status}: {len(recording)} polls recorded, "
        f"{len(_pages(recording))} of them with a page; {len(snapshots)} snapshots; slowest page "
        f"{max(poll.seconds or 0 for poll in recording):.2f} s\n"
    )
    return Evidence(
        overload=overload,
        death=death,
        after_restart=after_restart,
        sidecar_status=sidecar_status,
        snapshots=snapshots,
        snapshot_failures=tuple(collector.failures()),
        recording=recording,
    )


def _overload(
    vllm: Server, watcher: Server, webhook: Server, database: Server, say: Callable[[str], None]
) -> Overload:
    with load_on(vllm.url, STORM) as load:
        began = time.monotonic()
        alert = _wait_for(lambda: _line_with(ALERT, webhook.log), within=ALERT_WITHIN_SECONDS)
        alert_seconds = time.monotonic() - began
        firing = query(database.url, f'ALERTS{{alertname="{ALERT}",alertstate="firing"}}')
        say(f"the webhook after {alert_seconds:.1f} s: {alert}")
        # One page that takes long, as one of a busier server may (see the test of holes).
        with vllm.frozen():
            time.sleep(FROZEN_SECONDS)
        report = load.drain()
    rate = report.generated_tokens / report.seconds
    say(
        f"{report.requests} requests in {report.seconds:.0f} s, {len(report.errors)} errors; "
        f"{report.generated_tokens} tokens generated, {rate:.0f} a second"
    )
    time.sleep(5 * POLL_SECONDS)
    still_vllm = VllmPage.parse(_get(f"{vllm.url}/metrics"))
    say(f"at a standstill: {still_vllm}")
    return Overload(
        load=report,
        alert=alert,
        alert_seconds=alert_seconds,
        firing=next(iter(firing.values()), None),
        still_vllm=still_vllm,
        still_sidecar=_published(watcher),
    )


def _kill(vllm: Server, watcher: Server, say: Callable[[str], None]) -> Death:
    with load_on(vllm.url, LIGHT):
        time.sleep(8)
        killed_at = time.time()
        vllm.kill()
        gone = _wait_for(lambda: not engine_series(_published(watcher)), within=10)
        gone_seconds = time.time() - killed_at if gone else None
        say(f"killed vLLM under load; its engine series were gone after {gone_seconds} s")
        # A poll later, so that what is gone is seen to stay away.
        time.sleep(POLL_SECONDS)
        return Death(
            at=killed_at,
            gone_seconds=gone_seconds,
            published=_published(watcher),
            sidecar_alive=watcher.is_alive(),
        )


def test_the_load_was_answered_and_vllm_preempted(evidence: Evidence) -> None:
    assert evidence.overload.load.errors == ()
    assert evidence.overload.still_vllm.preemptions > 0
    # Nothing was cut off, so the server's counters and the clients' agree to the token.
    assert evidence.overload.still_vllm.generation_tokens == evidence.overload.load.generated_tokens
    assert evidence.overload.still_vllm.prompt_tokens == evidence.overload.load.prompt_tokens


def test_the_alert_reaches_the_webhook(evidence: Evidence) -> None:
    assert evidence.overload.alert is not None, f"no {ALERT} within {ALERT_WITHIN_SECONDS:.0f} s"
    assert "firing" in evidence.overload.alert.lower()
    assert evidence.overload.firing == 1
    # Its `for` is a minute: anything sooner would not be this rule.
    assert evidence.overload.alert_seconds >= 60


def test_every_snapshot_repeats_the_page_of_its_own_poll(evidence: Evidence) -> None:
    compared = 0
    for poll in evidence.recording:
        snapshot = evidence.snapshots.get(poll.at)
        if poll.page is None or snapshot is None:
            continue
        said = {name: of_engine(snapshot, name) for name in poll.page.repeated()}
        assert said == poll.page.repeated(), f"at {poll.at}"
        compared += 1
    pages = sum(poll.page is not None for poll in evidence.recording)
    assert pages >= 60
    assert compared >= 0.9 * pages
    assert evidence.snapshot_failures == ()


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("prompt_tokens_per_second", "prompt_tokens"),
        ("generation_tokens_per_second", "generation_tokens"),
    ],
)
def test_token_rates_follow_from_the_pages(evidence: Evidence, name: str, field: str) -> None:
    """The 10 s rates, computed again from the recorded pages of one life of the server."""
    window = 10.0
    compared = 0
    pages: list[tuple[float, VllmPage]] = []
    for at, page in _pages(evidence.recording):
        pages.append((at, page))
        opening = next((entry for entry in reversed(pages) if entry[0] <= at - window), None)
        snapshot = evidence.snapshots.get(at)
        if snapshot is None or opening is None or opening[0] < at - 2 * window:
            continue
        if opening[1].process_start != page.process_start:
            continue
        grown: float = getattr(page, field) - getattr(opening[1], field)
        rate = of_engine(snapshot, name)
        assert rate == pytest.approx(grown / (at - opening[0]), rel=1e-9), f"at {at}"
        compared += 1
    assert compared >= 40


def test_at_a_standstill_both_pages_agree(evidence: Evidence) -> None:
    repeated = evidence.overload.still_vllm.repeated()
    assert {name: of_engine(evidence.overload.still_sidecar, name) for name in repeated} == repeated
    assert (repeated["requests_running"], repeated["requests_waiting"]) == (0, 0)


def test_the_release_is_known_and_its_page_lacks_nothing(evidence: Evidence) -> None:
    (labels,) = evidence.overload.still_sidecar["target_info"]
    assert ("vllm_version", VLLM_VERSION) in labels
    assert "series_missing" not in evidence.overload.still_sidecar
    assert "series_invalid_total" not in evidence.overload.still_sidecar


def test_a_killed_server_vanishes_within_two_polls(evidence: Evidence) -> None:
    assert evidence.death.gone_seconds is not None
    # The second poll after the kill comes two periods later at most; the rest is for noticing.
    assert evidence.death.gone_seconds <= 2 * POLL_SECONDS + 0.5
    assert engine_series(evidence.death.published) == []
    assert evidence.death.published["source_up"][frozenset({("source", "vllm")})] == 0
    assert evidence.death.sidecar_alive


def test_no_snapshot_of_a_dead_server_shows_an_engine(evidence: Evidence) -> None:
    """From the second poll after the kill until the first page of the server's next life."""
    killed = evidence.overload.still_vllm.process_start
    back_at = next(
        at
        for at, page in _pages(evidence.recording)
        if at > evidence.death.at and page.process_start != killed
    )
    down = sorted(at for at in evidence.snapshots if evidence.death.at < at < back_at)
    assert len(down) >= 5
    assert not any(engine_series(evidence.snapshots[at]) for at in down[1:])


def test_a_slow_page_tears_no_hole(evidence: Evidence) -> None:
    """A page may take longer than a poll; between two pages the series must not flicker.

    A series that is absent from one scrape only would start an alert's waiting time anew.
    """
    slowest = max(poll.seconds or 0 for poll in evidence.recording)
    # On a busy machine a page may be asked for only at the second poll after the freeze began.
    assert slowest >= FROZEN_SECONDS - 2 * POLL_SECONDS > POLL_SECONDS
    pages = [at for at, _ in _pages(evidence.recording) if at < evidence.death.at]
    # By then every window of the rates has been filled for the first time.
    settled, last = pages[0] + 15, pages[-1]
    holes = [
        (round(at - settled, 1), name)
        for at, snapshot in sorted(evidence.snapshots.items())
        if settled <= at <= last
        for name in ("requests_running", "preemptions_per_second", "generation_tokens_per_second")
        if name not in snapshot
    ]
    assert holes == []


def test_a_restart_is_counted_once_and_series_return(evidence: Evidence) -> None:
    assert of_engine(evidence.after_restart, "engine_restarts_total") == 1
    assert of_engine(evidence.after_restart, "requests_running") == 0
    assert evidence.after_restart["source_up"][frozenset({("source", "vllm")})] == 1
    last = _pages(evidence.recording)[-1][1]
    assert of_engine(evidence.after_restart, "preemptions_total") == last.preemptions
    assert evidence.sidecar_status == 0


@pytest.mark.parametrize(
    ("name", "field", "at_most"),
    [
        ("preemptions_per_second", "preemptions", float("inf")),
        ("prompt_tokens_per_second", "prompt_tokens", TOKENS_PER_SECOND_AT_MOST),
        ("generation_tokens_per_second", "generation_tokens", TOKENS_PER_SECOND_AT_MOST),
    ],
)
def test_no_rate_is_absurd(evidence: Evidence, name: str, field: str, at_most: float) -> None:
    """A rate is an average, so it cannot exceed the fastest growth between two pages."""
    fastest = max(_growths(_pages(evidence.recording), field))
    rates = [
        rate for snapshot in evidence.snapshots.values() for rate in snapshot.get(name, {}).values()
    ]
    assert rates
    assert min(rates) >= 0
    assert max(rates) <= min(at_most, fastest) * (1 + 1e-9)


def test_no_rate_is_negative(evidence: Evidence) -> None:
    negative = [
        (at, name, value)
        for at, snapshot in evidence.snapshots.items()
        for name, series in snapshot.items()
        if name.endswith("_per_second")
        for value in series.values()
        if not value >= 0
    ]
    assert negative == []


def _pages(recording: Iterable[RecordedPoll]) -> list[tuple[float, VllmPage]]:
    return [(poll.at, poll.page) for poll in recording if poll.page is not None]


def _growths(pages: Iterable[tuple[float, VllmPage]], field: str) -> Iterator[float]:
    """Growth a second of a counter between neighbouring pages of one life of the server."""
    for (before_at, before), (at, page) in pairwise(pages):
        if before.process_start == page.process_start:
            yield (getattr(page, field) - getattr(before, field)) / (at - before_at)


def _published(watcher: Server) -> Published:
    return published_on_page(_get(f"{watcher.url}/metrics"))


def _get(url: str) -> str:
    answer = httpx.get(url, timeout=10, trust_env=False)
    answer.raise_for_status()
    return answer.text


def _line_with(word: str, log: Path) -> str | None:
    return next((line for line in log.read_text().splitlines() if word in line), None)


def _wait_for(condition: Callable[[], Told], *, within: float) -> Told:
    """The first truth that the condition tells, or the last thing it told before the bound."""
    deadline = time.monotonic() + within
    while not (told := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return told
