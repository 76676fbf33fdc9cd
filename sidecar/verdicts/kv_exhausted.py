"""The KV cache is full and running requests are thrown back into the queue.

Measured on a real server (vLLM 0.32.0, CPU, 39 blocks of 128 tokens, 24 clients): the cap of
running requests that everybody recommends buys zero preemptions with a quarter to a third of the
throughput, while on a server with 32,000-token prompts the same cap gains 240 %. Only the best
rate that was seen, and the batch it was seen at, tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import mean

from sidecar.engine_history import EngineHistory
from sidecar.indicators.load import best_rate
from sidecar.indicators.preemptions import per_finished_request, tokens_per_request
from sidecar.launch import has_flag
from sidecar.model import Advice, Avoid, Evidence, Scope, Severity, Verdict
from sidecar.verdicts.fragmentation import fragmentation_ratio
from sidecar.verdicts.memory_arithmetic import (
    flag_in_force,
    gib,
    kv_bytes_per_gpu,
    margin_bytes,
    room_for_more,
    round_utilization_down,
    utilization_in_force,
)
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.situation import Situation

MOVING_SECONDS = 30.0
MEAN_SECONDS = 30.0
LEAST_MOVED = 3.0
APART_SECONDS = 5.0
WATERMARK = 0.3


def judge(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        verdict = _judge_engine(situation, engine, scope)
        if verdict is not None:
            yield verdict


def _judge_engine(situation: Situation, engine: EngineHistory, scope: Scope) -> Verdict | None:
    limits = situation.thresholds
    usage = engine.usage.within(engine.at, 60.0)
    peak = max(usage, default=0.0)
    if peak < limits.kv_saturated_ratio or not preemptions_move(engine):
        return None
    loss = throughput_loss(engine)
    severity: Severity = "warning"
    if loss is not None and loss >= limits.throughput_loss_ratio:
        severity = "critical"
    per_finished = per_finished_request(engine)
    moved = engine.total("preemptions_total").increase(
        engine.at, MOVING_SECONDS, at_least_seconds=0.0
    )
    evidence = [
        Evidence("kv_cache_usage_peak_ratio", peak, "ratio", limits.kv_saturated_ratio),
        Evidence("preemptions_30s", moved.amount if moved else 0.0, "preemptions", LEAST_MOVED),
    ]
    if per_finished is not None:
        evidence.append(
            Evidence(
                "preemptions_per_finished_request",
                per_finished,
                "ratio",
                limits.preemptions_per_finished,
            )
        )
    if loss is not None:
        evidence.append(
            Evidence("throughput_loss_ratio", loss, "ratio", limits.throughput_loss_ratio)
        )
    if loss is None:
        cost = "; what it costs cannot be told, since less is asked for than at the best rate"
    elif severity == "critical":
        cost = f", and tokens per second are {loss:.0%} below the best of this load"
    else:
        cost = "; throughput still holds"
    just_now = engine.usage.within(engine.at, 10.0)
    full_now = max(just_now, default=0.0) >= limits.preemption_kv_usage_ratio
    return Verdict(
        "kv_exhausted",
        severity,
        "high" if per_finished is not None else "medium",
        f"The KV cache is full and running requests are preempted{cost}."
        if full_now
        else "The KV cache was full within the last minute, and running requests were preempted.",
        scope,
        evidence=tuple(evidence),
        advice=tuple(_advice(situation, engine, per_finished)),
        avoid=tuple(_avoid(engine)),
        missing=situation.missing(),
    )


def preemptions_move(engine: EngineHistory) -> bool:
    """Preemptions are more than an occasional one: relative to finished requests, or several
    within half a minute in different polls, or twice suspected from the queue."""
    limits = engine.thresholds
    moved = engine.total("preemptions_total").increase(
        engine.at, MOVING_SECONDS, at_least_seconds=0.0
    )
    if moved is None or moved.amount <= 0:
        return engine.suspicions_within(MOVING_SECONDS) >= 2
    per_finished = per_finished_request(engine)
    if per_finished is not None:
        return per_finished >= limits.preemptions_per_finished
    several = moved.amount >= LEAST_MOVED and _rising_seconds(engine) >= APART_SECONDS
    return several or engine.suspicions_within(MOVING_SECONDS) >= 2


def _rising_seconds(engine: EngineHistory) -> float:
    """Time between the first and the last poll of half a minute at which the counter rose: a
    single jump, as after a pause, is none."""
    points = engine.total("preemptions_total")
    rises = [
        at
        for before, (at, value) in zip(
            points.values, zip(points.times[1:], points.values[1:], strict=True), strict=False
        )
        if value > before and at > engine.at - MOVING_SECONDS
    ]
    return rises[-1] - rises[0] if rises else 0.0


def throughput_loss(engine: EngineHistory) -> float | None:
    """How far tokens per second are below their best, at no lower demand; None if demand fell."""
    reading, best, now = engine.reading, best_rate(engine), engine.tokens_per_second(10.0)
    if reading is None or best is None or now is None or best[0] <= 0:
        return None
    demand = (reading.running or 0.0) + (reading.waiting or 0.0)
    return 1.0 - now / best[0] if demand >= best[1] else None


def fitting_sequences(engine: EngineHistory) -> int | None:
    """How many requests of the present kind fit at once, whole blocks counted.

    A request is as long as the finished ones were on average or as the running ones are by now,
    whichever is more; both are means over half a minute.
    """
    capacity = engine.capacity
    if capacity is None or capacity.usable_tokens is None:
        return None
    lengths = [
        length
        for length in (mean_finished_tokens(engine, MEAN_SECONDS), _mean_held_tokens(engine))
        if length is not None
    ]
    if not lengths:
        return None
    block = capacity.usable_tokens / capacity.blocks
    blocks_each = math.ceil(max(lengths) / block)
    return max(1, math.floor(capacity.blocks / blocks_each)) if blocks_each else None


def mean_finished_tokens(engine: EngineHistory, seconds: float) -> float | None:
    """Prompt and generation tokens of the requests that finished lately."""
    finished, prompt, generated = (
        engine.total(name).increase(engine.at, seconds, at_least_seconds=0.0)
        for name in (
            "finished_total",
            "finished_prompt_tokens_total",
            "finished_generation_tokens_total",
        )
    )
    if finished is None or prompt is None or generated is None or finished.amount <= 0:
        return None
    return (prompt.amount + generated.amount) / finished.amount


def _mean_held_tokens(engine: EngineHistory) -> float | None:
    """Slots that a running request holds, now and on average over half a minute."""
    now = tokens_per_request(engine)
    capacity = engine.capacity
    usage = engine.usage.within(engine.at, MEAN_SECONDS)
    running = engine.running.within(engine.at, MEAN_SECONDS)
    if now is None or capacity is None or capacity.usable_tokens is None or not sum(running):
        return now
    return max(now, sum(usage) * capacity.usable_tokens / sum(running))


def _advice(
    situation: Situation, engine: EngineHistory, per_finished: float | None
) -> Iterable[Advice]:
    """In the order in which it should be tried."""
    yield from more_kv(situation, engine)
    if (
        per_finished is not None
        and per_finished >= situation.thresholds.watermark_from_preemptions
        and has_flag("--watermark", situation.release)
        and (situation.flags.number("watermark") or 0.0) < WATERMARK
    ):
        yield Advice(
            "--watermark",
            f"{WATERMARK:g}",
            "about half of the preemptions, tokens per second within a few per cent",
            "keeps a share of the blocks free when requests are admitted, so that those already "
            "running can grow; step back if tokens per second fall by more than 10 %",
            current=situation.flags.text("watermark") or "0.0",
        )
    yield from _cap(situation, engine)
    if has_flag("--kv-offloading-size", situation.release):
        yield Advice(
            "--kv-offloading-size",
            None,
            "preempted requests are loaded back instead of being computed again",
            "keeps KV blocks in host memory (GiB over all ranks); needs free host memory and a "
            "fast link",
        )
    yield Advice(
        "--max-model-len",
        None,
        "fewer requests grow past what fits",
        "only where requests could be shorter; it changes nothing for those that are not longer",
        current=situation.flags.text("max_model_len"),
    )


def more_kv(situation: Situation, engine: EngineHistory) -> Iterable[Advice]:
    """More KV cache, where the bytes for it exist."""
    flag, room = flag_in_force(situation), room_for_more(situation)
    held = kv_bytes_per_gpu(situation, engine)
    tokens = engine.capacity.tokens if engine.capacity is not None else None
    if room is not None and room.usable_bytes > margin_bytes(room.total_bytes):
        expect = f"{gib(room.usable_bytes)} more KV cache on each GPU"
        if held and tokens:
            after = tokens * (1 + room.usable_bytes / held)
            expect += f": {tokens:,} tokens become about {after:,.0f}"
        if flag == "--gpu-memory-utilization":
            now = utilization_in_force(situation)
            to = round_utilization_down((room.vllm_bytes + room.usable_bytes) / room.total_bytes)
            if now is None or round(to - now, 4) >= 0.01:
                yield Advice(
                    flag,
                    f"{to:.2f}",
                    expect,
                    f"GPU {room.gpu}: vLLM holds {gib(room.vllm_bytes)}, {gib(room.free_bytes)} "
                    f"are free, {gib(margin_bytes(room.total_bytes))} stay as margin, of "
                    f"{gib(room.total_bytes)}; go back by 0.02 if it does not start",
                    current=None if now is None else f"{now:g}",
                )
        elif flag == "--kv-cache-memory-bytes" and held:
            yield Advice(
                flag,
                f"{int(held + room.usable_bytes)}",
                expect,
                f"this flag is set, so --gpu-memory-utilization does nothing; GPU {room.gpu} has "
                f"{gib(room.free_bytes)} free",
                current=f"{int(held)}",
            )
    if flag == "--num-gpu-blocks-override":
        blocks = situation.flags.whole(flag.lstrip("-").replace("-", "_"))
        expect = "twice the blocks, or all that fit without this flag"
        if tokens:
            expect += f": {tokens:,} tokens become about {2 * tokens:,}"
        yield Advice(
            flag,
            None if blocks is None else str(2 * blocks),
            expect,
            "the pool is limited by this flag, which is meant for tests; "
            "--gpu-memory-utilization does nothing while it is set",
            current=None if blocks is None else str(blocks),
        )
    if situation.flags.text("kv_cache_dtype") == "auto" and situation.history.memory is not None:
        yield Advice(
            "--kv-cache-dtype",
            "fp8",
            "about twice the tokens in the same bytes",
            "where the device and the model take it; check the quality of the answers",
            current="auto",
        )


def _cap(situation: Situation, engine: EngineHistory) -> Iterable[Advice]:
    """A cap on running requests, with what it costs.

    Today's figures are means over half a minute: while requests are thrown out and taken in
    again, a single moment has half or twice as many of them.
    """
    running = engine.running.within(engine.at, MEAN_SECONDS)
    rate = engine.tokens_per_second(MEAN_SECONDS)
    if engine.reading is None or not engine.reading.running or not running:
        return
    running_now = mean(running)
    best = _knee(engine, rate, running_now)
    fits, knee = fitting_sequences(engine), round(best[1]) if best is not None else None
    candidates = [value for value in (fits, knee) if value]
    if not candidates:
        return
    to = min(candidates)
    now = situation.flags.whole("max_num_seqs")
    if now is not None and to >= now:
        return
    expect = "hardly any preemptions"
    why = (
        "that many requests of this length fit at once; it steadies latency and may cost "
        "throughput, so raise it again if tokens per second matter more"
    )
    if best is not None and to == knee:
        expect += f"; tokens per second back towards {best[0]:,.0f}"
        why = "that many ran when tokens per second were at their best, so this gains throughput"
    elif rate:
        # Fewer requests than at the knee: between that best rate and their share of today's.
        least, most = min(1.0, to / running_now) * rate, best[0] if best is not None else rate
        expect += f"; tokens per second between {least:,.0f} and {most:,.0f}"
    yield Advice("--max-num-seqs", str(to), expect, why, current=None if now is None else str(now))


def _knee(engine: EngineHistory, rate: float | None, running: float) -> tuple[float, float] | None:
    """The best rate and the running requests then, if more requests now get much less done."""
    best, loss = best_rate(engine), throughput_loss(engine)
    if best is None or loss is None or not rate:
        return None
    lost_ratio = min(loss, 1.0 - rate / best[0])
    is_knee = best[1] < running and lost_ratio >= engine.thresholds.throughput_loss_ratio
    return best if is_knee else None


def _avoid(engine: EngineHistory) -> Iterable[Avoid]:
    fragmented = fragmentation_ratio(engine)
    if fragmented is None or fragmented < engine.thresholds.fragmentation_ratio:
        yield Avoid("--block-size", "the blocks are filled; smaller ones would add nothing")
    yield Avoid("--enforce-eager", "saves little memory and costs more than half the throughput")


RULE = Rule("kv_exhausted", ("warning", "critical"), judge)
