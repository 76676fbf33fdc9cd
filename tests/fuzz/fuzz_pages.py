"""Feeds damaged pages, logs and recordings to the sidecar until the time is up.

    python tests/fuzz/fuzz_pages.py [--seconds 600] [--seed 1]

Only this is asserted: nothing raises, each input is read in bounded time, and what is read is
finite and in range. A failure prints the seed and the number of the input, which make it again
with `--seed SEED --only NUMBER`, and keeps the input in a file.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from damage import damaged, random_bytes

from sidecar.exposition import Board
from sidecar.model import EngineReading, Histogram, Page, Poll, ServerReading
from sidecar.pipeline import Pipeline
from sidecar.recordings import RecordingError, open_recording
from sidecar.sources.page_reason import REASONS
from sidecar.sources.releases import Release, parse_release
from sidecar.sources.vllm_text import MOST_ENGINES, read_page
from sidecar.startlog import LogReader, parse_lines, start_json

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
PAGES = [path.read_text("utf-8") for path in sorted(CAPTURES.glob("pages/**/*.prom"))]
LOGS = [path.read_text("utf-8", "replace") for path in sorted(CAPTURES.glob("logs/*.log"))]
RECORDED = [
    path.name
    for path in sorted(CAPTURES.glob("recordings/*.jsonl.gz"))
    if path.stat().st_size < 200_000
]
VERSIONS = (None, "0.2.3", "0.6.3", "0.8.1", "0.8.5.post1", "0.9.2", "0.11.0", "0.20.0", "0.33.0")
RECORDING_LINES = 4
SLOWEST_SECONDS = 2.0
"""For inputs of up to 400 kB, on a machine that does other things at the same time."""
SLOWEST_SECONDS_OF_GIANTS = 20.0
_FIELDS = [name for name in EngineReading.__slots__ if name.endswith(("_total", "_ratio"))]


def check_page(random: Random) -> str:
    text = _page(random)
    release: Release | None = parse_release(random.choice(VERSIONS))
    check_reading(read_page(text, release))
    return text


def check_giant(random: Random) -> str:
    """A page of 22 MB, or one with a label of 7 MB, as somebody's server once had."""
    line = random.choice(random.choice(PAGES).splitlines()) + "\n"
    text = random.choice(
        (
            'vllm:num_requests_running{model_name="' + "x" * 7_000_000 + '"} 1\n',
            line * (22_000_000 // len(line)),
            "".join(f'vllm:num_requests_running{{engine="{n}"}} 1\n' for n in range(400_000)),
            "".join(
                f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{n}'
                + "a" * 40_000
                + '"} 1\n'
                for n in range(500)
            ),
            "{" * 5_000_000 + "\n" + '"' * 5_000_000,
            "vllm:num_requests_running{" + 'a="b",' * 10_000 + "} 1\n",
            ("vllm:num_requests_running{" + 'a"' * 30_000 + "} 1\n") * 300,
        )
    )
    check_reading(read_page(text, (0, 33, 0)))
    return text[:1_000]


def check_frames(random: Random) -> str:
    """A few polls in a row through everything, to the text that Prometheus gets."""
    pipeline, board = Pipeline(), Board()
    texts = [_page(random) for _ in range(3)]
    version = random.choice(VERSIONS)
    for second, text in enumerate(texts):
        frame = pipeline.advance(Poll(1.7e9 + second, Page(text, 0.01), None, version))
        for sample in frame.samples:
            if not isinstance(sample.value, Histogram):
                assert math.isfinite(sample.value), sample
        board.publish(frame)
        board.render("")
    return "\n--- next page ---\n".join(texts)


def check_log(random: Random) -> bytes:
    text = damaged(random, random.choice(LOGS), most=200_000)
    data = random.choice((text.encode("utf-8", "replace"), random_bytes(random)))
    parse_lines(data.decode("utf-8", "replace"))
    reader = LogReader()
    at = 0
    while at < len(data):
        step = random.choice((1, 17, 4_096, 10**6)) if len(data) < 5_000 else 10**5
        reader.feed(data[at : at + step])
        at += step
    reader.finish()
    json.dumps(start_json(reader.last), allow_nan=False)
    return data


def check_recording(random: Random) -> bytes:
    name = random.choice(RECORDED)
    lines = damaged(random, "".join(_recording(name)))
    data = gzip.compress(lines.encode("utf-8", "replace"), 1)
    if random.random() < 0.2:
        at = random.randrange(len(data))
        data = data[:at] + random_bytes(random) + data[at + random.randint(0, 9) :]
    with tempfile.NamedTemporaryFile(suffix=".jsonl.gz") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(RecordingError):
            for poll in open_recording(Path(file.name)).polls():
                assert math.isfinite(poll.at)
                assert not isinstance(poll.vllm, Page) or math.isfinite(poll.vllm.seconds)
    return data


def check_reading(reading: ServerReading) -> None:
    """Whatever was read, every figure is one that may be believed."""
    assert len(reading.engines) <= MOST_ENGINES
    assert len({engine.key for engine in reading.engines}) == len(reading.engines)
    for engine in reading.engines:
        figures = [getattr(engine, name) for name in _FIELDS]
        figures += [engine.running, engine.waiting, *engine.waiting_by_reason.values()]
        assert all(figure is None or 0.0 <= figure < math.inf for figure in figures), engine
        assert engine.kv_usage_ratio is None or engine.kv_usage_ratio <= 1.0
        for histogram in (engine.iteration_tokens, engine.queue_seconds):
            if histogram is not None:
                bounds = [bound for bound, _ in histogram.buckets]
                assert bounds == sorted(set(bounds))
                assert all(math.isfinite(count) for _, count in histogram.buckets)
        if engine.cache is not None:
            whole = (engine.cache.block_size, engine.cache.num_gpu_blocks)
            assert all(number is None or number >= 0 for number in whole)
    assert all(count > 0 for count in reading.invalid.values())
    states = (reading.missing, reading.pending, reading.empty, tuple(reading.invalid))
    named = [name for state in states for name in state]
    assert len(named) == len(set(named)), states
    assert reading.reason is None or reading.reason in REASONS


def _page(random: Random) -> str:
    if random.random() < 0.05:
        return random_bytes(random).decode("utf-8", "replace")
    return damaged(random, random.choice(PAGES))


def _recording(name: str) -> list[str]:
    with gzip.open(CAPTURES / "recordings" / name, "rt", encoding="utf-8") as file:
        return [file.readline(200_000) for _ in range(RECORDING_LINES)]


Check = Callable[[Random], str | bytes]
CHECKS: tuple[tuple[Check, int], ...] = (
    (check_page, 60),
    (check_frames, 8),
    (check_log, 20),
    (check_recording, 12),
)
GIANT_EVERY = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed damaged input to the sidecar.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--only", type=int, help="the number of a single input")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    done: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    deadline = time.monotonic() + given.seconds
    said = time.monotonic()
    number = given.only if given.only is not None else 0
    while time.monotonic() < deadline:
        random = Random(f"{given.seed}:{number}")
        (check,) = random.choices([c for c, _ in CHECKS], [weight for _, weight in CHECKS])
        if number % GIANT_EVERY == 0:
            check = check_giant
        limit = SLOWEST_SECONDS_OF_GIANTS if check is check_giant else SLOWEST_SECONDS
        began = time.process_time()
        try:
            kept = check(random)
            seconds = time.process_time() - began
            if seconds > limit:
                raise AssertionError(f"took {seconds:.1f} s")
        except Exception:
            print(f"FAILED {check.__name__} with --seed {given.seed} --only {number}", flush=True)
            raise
        name = check.__name__.removeprefix("check_")
        done[name] += 1
        slowest[name] = max(seconds, slowest.get(name, 0.0))
        if given.only is not None:
            Path(tempfile.gettempdir(), f"fuzz-{given.seed}-{number}").write_bytes(
                kept.encode("utf-8", "replace") if isinstance(kept, str) else kept
            )
            break
        number += 1
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"{number} inputs", flush=True)
    for name, count in sorted(done.items()):
        print(f"{name}: {count} inputs, the slowest took {slowest[name]:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
