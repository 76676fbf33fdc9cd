"""What to do about a full KV cache, in the order in which it should be tried, and what it costs.

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
from sidecar.indicators.load import best_rate, throughput_loss
from sidecar.indicators.preemptions import tokens_per_request
from sidecar.launch import has_flag
from sidecar.model import Advice, Avoid
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
from sidecar.verdicts.situation import Situation

MEAN_SECONDS = 30.0
WATERMARK = 0.3


def remedies(
    situation: Situation, engine: EngineHistory, per_finished: float | None
) -> Iterable[Advice]:
    """In the order in which it should be tried."""
    yield from _more_kv(situation, engine)
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


def _more_kv(situation: Situation, engine: EngineHistory) -> Iterable[Advice]:
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
        twice = f" ({tokens:,} tokens become about {2 * tokens:,})" if tokens else ""
        yield Advice(
            flag,
            None if blocks is None else str(2 * blocks),
            f"twice the blocks{twice}, or all that fit without this flag",
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
        for length in (_mean_finished_tokens(engine, MEAN_SECONDS), _mean_held_tokens(engine))
        if length is not None
    ]
    if not lengths:
        return None
    block = capacity.usable_tokens / capacity.blocks
    blocks_each = math.ceil(max(lengths) / block)
    return max(1, math.floor(capacity.blocks / blocks_each)) if blocks_each else None


def _mean_finished_tokens(engine: EngineHistory, seconds: float) -> float | None:
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


def tempting(engine: EngineHistory) -> Iterable[Avoid]:
    """Levers that are commonly pulled then and do not help."""
    fragmented = fragmentation_ratio(engine)
    if fragmented is None or fragmented < engine.thresholds.fragmentation_ratio:
        yield Avoid("--block-size", "the blocks are filled; smaller ones would add nothing")
    yield Avoid("--enforce-eager", "saves little memory and costs more than half the throughput")
