"""What state the server is in. `healthy` and `idle` follow from what else holds; see `judge`."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.lifecycle import Lifecycle
from sidecar.model import Advice, Confidence, Evidence, Verdict
from sidecar.verdicts.rule import AT_ONCE, Hold, Rule
from sidecar.verdicts.situation import Situation


def judge_starting(situation: Situation) -> Iterable[Verdict]:
    life = situation.lifecycle
    goes_on = not life.ever_up and _start_goes_on(situation)
    if not life.is_starting(situation.at) and not (goes_on and life.never_came(situation.at)):
        return
    confidence: Confidence = "medium"
    if life.ever_up:
        summary = "The server is not up yet; a process is there that was not there before."
    elif goes_on:
        summary = "The server is not up yet; its log shows a start that goes on."
    else:
        confidence = "low"
        summary = (
            f"{_so_far(life)} answered here yet: the server may be starting, or the address may be "
            "wrong."
        )
    yield Verdict(
        "starting",
        "info",
        confidence,
        summary,
        evidence=(Evidence("last_answer", life.failure_reason or "none"),),
        missing=situation.missing() if confidence == "low" else (),
    )


def _so_far(life: Lifecycle) -> str:
    return "Only errors have" if life.failure_reason == "http_status" else "Nobody has"


_READ_THE_LOG = Advice(
    "log",
    None,
    "the cause",
    "read how its log ends: `vllm-sidecar explain LOGFILE` names the cause with its numbers",
)


def judge_down(situation: Situation) -> Iterable[Verdict]:
    life = situation.lifecycle
    if life.is_starting(situation.at):
        return
    if life.is_down(situation.at):
        since = life.failing_since if life.failing_since is not None else situation.at
        summary = f"The server was up and does not answer any more ({life.failure_reason})."
        advice: tuple[Advice, ...] = (_READ_THE_LOG,)
        confidence: Confidence = "high"
    elif life.never_came(situation.at) and not _start_goes_on(situation):
        since = life.began_at if life.began_at is not None else situation.at
        confidence = "medium"
        summary = f"{_so_far(life)} answered here since the sidecar began ({life.failure_reason})."
        where = Advice(
            "--vllm-url", None, "the server answers", "see whether this is the server's address"
        )
        advice = (where, _READ_THE_LOG)
    else:
        return
    yield Verdict(
        "vllm_down",
        "critical",
        confidence,
        summary,
        evidence=(
            Evidence("seconds_without_answer", situation.at - since, "seconds"),
            Evidence("reason", life.failure_reason or "unknown"),
        ),
        advice=advice,
        missing=situation.missing(),
    )


def _start_goes_on(situation: Situation) -> bool:
    """The log shows a start that has neither ended nor failed: then a large model takes long."""
    start = situation.start
    if start is None or start.started or start.shut_down:
        return False
    return start.decisive_failure is None


def judge_blind(situation: Situation) -> Iterable[Verdict]:
    life = situation.lifecycle
    if not life.is_blind:
        return
    if life.answers_foreign:
        yield _foreign(situation)
        return
    yield Verdict(
        "vllm_blind",
        "warning",
        "high",
        f"The server is alive and its metrics page is not readable ({life.failure_reason}).",
        evidence=(Evidence("metrics_page", life.failure_reason or "unknown"),),
        advice=(
            Advice(
                "metrics",
                None,
                "the page can be read again",
                "500: point PROMETHEUS_MULTIPROC_DIR to a local tmpfs, or upgrade (FastAPI 0.137 "
                "with vLLM before 0.24 fails on every request); time-outs: poll less often",
            ),
        ),
    )


def _foreign(situation: Situation) -> Verdict:
    reason = situation.lifecycle.failure_reason or "unknown"
    return Verdict(
        "vllm_blind",
        "warning",
        "medium",
        f"Somebody answers at the server's address, and not as vLLM does there ({reason}).",
        evidence=(Evidence("metrics_page", reason),),
        advice=(
            Advice(
                "--vllm-url",
                None,
                "the page can be read again",
                "the certificate is not trusted, or one side speaks TLS and the other does not: "
                "https:// or http://, and SIDECAR_VLLM_CA_FILE for a certificate of your own"
                if reason == "tls"
                else "another program or a proxy answers at this address; ask vLLM's own port",
            ),
        ),
        missing=situation.missing(),
    )


def judge_asleep(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.engines():
        if engine.reading is not None and engine.reading.sleeping:
            yield Verdict("asleep", "info", "high", "The engine sleeps.", scope)


def judge_restarted(situation: Situation) -> Iterable[Verdict]:
    life = situation.lifecycle
    if life.up and life.just_restarted(situation.at):
        yield Verdict(
            "restarted",
            "info",
            "high",
            "The server was restarted less than a minute ago; its counters began again.",
        )


def judge_paused(situation: Situation) -> Iterable[Verdict]:
    if situation.paused:
        yield Verdict("paused", "info", "high", "Generation is paused on request.")


def steady(situation: Situation, others: Iterable[Verdict]) -> Iterable[Verdict]:
    """`healthy` or `idle`, for each engine, where nothing of weight holds."""
    if situation.snapshot.server is None or any(v.severity != "info" for v in others):
        return
    for engine, scope in situation.engines():
        reading = engine.reading
        if reading is None or reading.running is None or reading.sleeping:
            continue
        busy = reading.running + (reading.waiting or 0.0)
        code, summary = (
            ("healthy", f"{reading.running:.0f} requests run and nothing is wrong.")
            if busy
            else ("idle", "Nothing runs and nothing waits.")
        )
        yield Verdict(
            code,
            "info",
            "high" if reading.kv_usage_ratio is not None else "low",
            summary,
            scope,
            evidence=(Evidence("requests_running", reading.running, "requests"),),
        )


STARTING = Rule("starting", ("info",), judge_starting, AT_ONCE, linger_seconds=0.0, level="server")
DOWN = Rule("vllm_down", ("critical",), judge_down, AT_ONCE, linger_seconds=0.0, level="server")
BLIND = Rule(
    "vllm_blind", ("warning",), judge_blind, Hold(2.5, 10.0), linger_seconds=0.0, level="server"
)
ASLEEP = Rule("asleep", ("info",), judge_asleep, AT_ONCE, linger_seconds=0.0)
RESTARTED = Rule(
    "restarted", ("info",), judge_restarted, AT_ONCE, linger_seconds=0.0, level="server"
)
PAUSED = Rule("paused", ("info",), judge_paused, AT_ONCE, linger_seconds=0.0, level="server")
