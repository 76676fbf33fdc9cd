"""How long reading a page of vLLM takes, against the Prometheus client's own parser.

    python bench/parsing.py

Both parse the same pages in the same run: a real page of vLLM 0.32.0 (50 kB), and pages of about
425 kB made of it, with the series of more engines and with those of more HTTP handlers. Exits 1
unless the sidecar is at least ten times as fast on each.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.sources.vllm_text import read_page

PAGE = Path(__file__).parents[1] / "tests/captures/pages/vllm-0.32.0-cpu-preempting.prom"
RELEASE = (0, 32, 0)
LARGE_CHARACTERS = 425_000
LEAST_RATIO = 10.0


def pages() -> Iterator[tuple[str, str]]:
    """Names and texts."""
    text = PAGE.read_text("utf-8")
    yield "as it is", text
    yield "more engines", with_more_engines(text)
    yield "more handlers", with_more_handlers(text)


def with_more_engines(text: str) -> str:
    """The same server with so many data-parallel engines that the page is large."""
    of_an_engine = sum(len(line) + 1 for line in text.splitlines() if 'engine="0"' in line)
    engines = 1 + (LARGE_CHARACTERS - len(text)) // of_an_engine
    lines: list[str] = []
    for line in text.splitlines():
        copies = engines if 'engine="0"' in line else 1
        lines += [line.replace('engine="0"', f'engine="{number}"') for number in range(copies)]
    return "\n".join(lines) + "\n"


def with_more_handlers(text: str) -> str:
    """The same server whose clients have asked for many different paths."""
    lines = [line for line in text.splitlines() if re.match(r"http_request_duration_s\w+{", line)]
    lines = lines or ['http_request_duration_seconds_bucket{handler="none",le="0.1"} 1.0']
    more: list[str] = []
    size = len(text)
    while size < LARGE_CHARACTERS:
        number = len(more) // len(lines)
        more += [re.sub(r'handler="', f'handler="/v1/{number}', line) for line in lines]
        size += sum(len(line) + 1 for line in more[-len(lines) :])
    return text + "\n".join(more) + "\n"


def milliseconds(work: Callable[[], object], times: int) -> float:
    """The best of several runs: what the machine does besides only ever adds."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def main() -> int:
    slow = False
    print("page             kB   engines   sidecar ms   client ms   ratio")
    for name, text in pages():
        engines = len(read_page(text, RELEASE).engines)
        ours = milliseconds(lambda text=text: read_page(text, RELEASE), 30)  # type: ignore[misc]
        theirs = milliseconds(
            lambda text=text: list(text_string_to_metric_families(text)),  # type: ignore[misc]
            5,
        )
        ratio = theirs / ours
        slow = slow or ratio < LEAST_RATIO
        size = len(text) / 1_000
        print(f"{name:14}{size:5.0f}   {engines:7}   {ours:10.2f}   {theirs:9.2f}   {ratio:5.1f}")
    if slow:
        print(f"less than {LEAST_RATIO:g} times as fast as the client's parser")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
