"""Moments made by hand, and what a rule says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from synthetic import GIB, engine, gpu, snapshot

from sidecar.history import History
from sidecar.judge import Judge
from sidecar.launch import LaunchFlags
from sidecar.lifecycle import Lifecycle
from sidecar.model import GpuProcess, GpuReading, Scope, Snapshot, Verdict
from sidecar.settings import Thresholds
from sidecar.startlog.start import Start
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.situation import Situation

MIB = 2**20
ENGINE = Scope("m", "0")
GPU_0 = Scope(gpu="0")


def polls(
    seconds: float,
    *,
    first: float = 0.0,
    every: float = 1.0,
    gpus: Callable[[float], Iterable[GpuReading]] | None = None,
    version: str | None = "0.25.0",
    **fields: Any,
) -> list[Snapshot]:
    """A poll each `every` seconds, both ends included. A field may be a function of the time
    since the first of these polls."""
    found = []
    for index in range(int(seconds / every) + 1):
        t = index * every
        now = {name: value(t) if callable(value) else value for name, value in fields.items()}
        found.append(
            snapshot(
                first + t,
                engine(**now),
                gpus=None if gpus is None else gpus(t),
                version=version,
            )
        )
    return found


def situation(
    snapshots: Iterable[Snapshot],
    *,
    flags: Mapping[str, str] | None = None,
    start: Start | None = None,
    thresholds: Thresholds | None = None,
) -> Situation:
    """The moment of the last snapshot, with all those before it remembered."""
    seen, life = History(thresholds), Lifecycle()
    last: Snapshot | None = None
    for last in snapshots:
        seen.add(last)
        life.add(last, seen)
    assert last is not None
    judge = Judge(LaunchFlags(dict(flags or {})))
    judge.start = start
    return Situation(last, seen, life, judge.flags_in_force(seen), start)


def said(rule: Rule, snapshots: Iterable[Snapshot], **known: Any) -> list[Verdict]:
    """What a rule says of the last moment, by the shape that it declares."""
    verdicts = list(rule.judge(situation(snapshots, **known)))
    for verdict in verdicts:
        assert verdict.code == rule.code
        assert verdict.severity in rule.severities
        assert verdict.evidence or rule.code in ("asleep", "paused", "restarted")
    scopes = [verdict.scope for verdict in verdicts]
    assert len(scopes) == len(set(scopes))
    return verdicts


def only(rule: Rule, snapshots: Iterable[Snapshot], **known: Any) -> Verdict:
    """The one verdict of a rule, which must be there."""
    verdicts = said(rule, snapshots, **known)
    assert len(verdicts) == 1
    return verdicts[0]


def severity(rule: Rule, snapshots: Iterable[Snapshot], **known: Any) -> str | None:
    """The severity of the one verdict of a rule, or None where it is silent."""
    verdicts = said(rule, snapshots, **known)
    assert len(verdicts) <= 1
    return verdicts[0].severity if verdicts else None


def advised(verdict: Verdict) -> dict[str, str | None]:
    """Flags and what they should become, in order."""
    return {item.flag: item.to for item in verdict.advice}


def avoided(verdict: Verdict) -> set[str]:
    return {item.flag for item in verdict.avoid}


def figure(verdict: Verdict, name: str) -> float | str | None:
    """The value of a piece of evidence, or None where it is not there."""
    found = [item.value for item in verdict.evidence if item.name == name]
    assert len(found) <= 1
    return found[0] if found else None


def card(
    free_mib: float,
    processes: Mapping[int, float],
    *,
    total_mib: float = 80 * 1024,
    index: int = 0,
    unified: bool = False,
) -> GpuReading:
    """A device of which so much is free; processes by pid with what they hold, in MiB."""
    device = gpu(0, index=index)
    assert device.memory is not None
    total, free = int(total_mib * MIB), int(free_mib * MIB)
    return replace(
        device,
        memory=replace(device.memory, total_bytes=total, free_bytes=free, used_bytes=total - free),
        processes=tuple(GpuProcess(pid, int(held * MIB)) for pid, held in processes.items()),
        unified=unified,
    )


def own(gib: float, total: float = 80.0) -> GpuReading:
    """A device with nothing on it but the server, in GiB."""
    return card((total - gib) * 1024, {1: gib * 1024}, total_mib=total * 1024)


def started_again(poll: Snapshot) -> Snapshot:
    """The same poll of the next life of the server."""
    assert poll.server is not None
    return replace(poll, server=replace(poll.server, process_start_seconds=20.0))


__all__ = ["GIB", "engine", "gpu", "snapshot"]
