"""The real vLLM in the shapes that change its page: one process, two engines, no statistics.

Each server runs once, under a little load, with the sidecar beside it; what the sidecar published
and recorded is compared with vLLM's own pages, read by the Prometheus client's parser. Three to
five minutes on two cores; `E2E_VLLM_ENVIRONMENT` names a vLLM environment that is already there.

    pytest tests/e2e/test_live_matrix.py -m e2e
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.model import Page, ServerReading
from sidecar.recordings import open_recording
from sidecar.sources.releases import parse_release
from sidecar.sources.vllm_text import read_page

from .load import Load, LoadReport, load_on
from .readings import Published, engine_series, published_on_page
from .servers import VllmOptions, free_port, sidecar, vllm_server
from .vllm_environment import DEFAULT_PATH, VLLM_VERSION, make_environment, make_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KV_BLOCKS = 18
"""17 of them usable, 128 tokens each: ten requests of some 400 tokens do not fit."""
LOAD = Load(clients=10, prompt_tokens=(60, 140), output_tokens=(200, 320))
LOAD_SECONDS = 12.0

Key = tuple[str, str]
READ = {
    "vllm:kv_cache_usage_perc": "kv_usage_ratio",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:request_success_total": "finished_total",
    "vllm:time_to_first_token_seconds_count": "first_tokens_total",
    "vllm:request_prompt_tokens_sum": "finished_prompt_tokens_total",
}
REPEATED = {
    "vllm:kv_cache_usage_perc": "kv_cache_usage_ratio",
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:num_preemptions_total": "preemptions_total",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What was seen of one server, in order."""

    first: Published
    load: LoadReport
    vllm: str
    last: Published
    pages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a server is started, and what must be read of it."""

    name: str
    flags: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("0",)
    reason_before: str | None = None
    reason_after: str | None = None


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("defaults"),
        Shape(
            "two-engines",
            ("--data-parallel-size", "2"),
            engines=("0", "1"),
            reason_before="before_first_step",
        ),
        Shape(
            "no-statistics",
            ("--disable-log-stats",),
            engines=(),
            reason_before="log_stats_off",
            reason_after="log_stats_off",
        ),
    )
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of the vLLM environment, and a folder with a model in it."""
    python = make_environment(Path(os.environ.get("E2E_VLLM_ENVIRONMENT", DEFAULT_PATH)))
    folder = tmp_path_factory.mktemp("live-matrix")
    make_model(folder / "tiny")
    return python, folder


@pytest.fixture(scope="module", params=SHAPES)
def shape_and_run(request: pytest.FixtureRequest, home: tuple[Path, Path]) -> tuple[Shape, Ran]:
    python, parent = home
    shape = SHAPES[request.param]
    return shape, _run(shape, python, parent / "tiny", parent / shape.name)


def _run(shape: Shape, python: Path, model: Path, folder: Path) -> Ran:
    port = free_port()
    record = folder / "run.jsonl.gz"
    options = VllmOptions(kv_blocks=KV_BLOCKS, max_num_seqs=16, more=shape.flags)
    with contextlib.ExitStack() as stack:
        vllm = stack.enter_context(vllm_server(python, model, folder, port, options))
        watcher = stack.enter_context(sidecar(folder, vllm.url, record=record))
        time.sleep(2.5)  # the first poll knows the page, a later one the release
        first = published_on_page(_get(f"{watcher.url}/metrics"))
        with load_on(vllm.url, LOAD) as generator:
            time.sleep(LOAD_SECONDS)
        time.sleep(2.5)  # at rest now, and seen at rest
        page = _get(f"{vllm.url}/metrics")
        last = published_on_page(_get(f"{watcher.url}/metrics"))
        watcher.stop()
    pages = tuple(
        poll.vllm.text for poll in open_recording(record).polls() if isinstance(poll.vllm, Page)
    )
    return Ran(first, generator.report(), page, last, pages)


def test_the_load_was_answered(shape_and_run: tuple[Shape, Ran]) -> None:
    _, ran = shape_and_run
    assert ran.load.errors == ()
    assert ran.load.requests >= 10


def test_every_page_is_read_as_by_the_book(shape_and_run: tuple[Shape, Ran]) -> None:
    shape, ran = shape_and_run
    assert len(ran.pages) >= LOAD_SECONDS / 2
    busiest = 0.0
    for text in ran.pages:
        reading = _read(text)
        assert {engine.engine for engine in reading.engines} == set(shape.engines)
        for key, values in _by_the_book(text).items():
            (engine,) = (each for each in reading.engines if each.key == key)
            assert {name: getattr(engine, name) for name in values} == values
            busiest = max(busiest, values.get("kv_usage_ratio", 0.0))
        assert reading.invalid == {}
    assert (busiest > 0.3) is bool(shape.engines)


def test_at_rest_both_pages_agree(shape_and_run: tuple[Shape, Ran]) -> None:
    shape, ran = shape_and_run
    said = {
        (sidecars, labels["engine"]): value
        for sidecars in REPEATED.values()
        for pairs, value in ran.last.get(sidecars, {}).items()
        if (labels := dict(pairs))
    }
    truth = {
        (REPEATED[sample.name], sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(ran.vllm)
        for sample in family.samples
        if sample.name in REPEATED
    }
    assert said == truth
    assert len(truth) == len(REPEATED) * len(shape.engines)
    preempted = sum(value for (name, _), value in truth.items() if name == "preemptions_total")
    assert preempted > 0 or len(shape.engines) != 1


def test_each_engine_has_its_own_blocks(shape_and_run: tuple[Shape, Ran]) -> None:
    shape, ran = shape_and_run
    blocks = ran.last.get("kv_cache_capacity_blocks", {})
    assert sorted(blocks.values()) == [KV_BLOCKS - 1] * len(shape.engines)


def test_reasons_before_and_after_the_load(shape_and_run: tuple[Shape, Ran]) -> None:
    shape, ran = shape_and_run
    assert _reasons(ran.first) == _only(shape.reason_before)
    assert _reasons(ran.last) == _only(shape.reason_after)
    assert bool(engine_series(ran.last)) is bool(shape.engines)
    assert ("series_missing" in ran.last) is not bool(shape.engines)
    assert "series_invalid_total" not in ran.last
    assert ran.last["source_up"][frozenset({("source", "vllm")})] == 1


def test_what_is_pending_at_first_is_there_later(shape_and_run: tuple[Shape, Ran]) -> None:
    shape, ran = shape_and_run
    first, last = _read(ran.pages[0]), _read(ran.pages[-1])
    if shape.name == "two-engines":
        assert {"kv_usage_ratio", "running", "waiting"} <= set(first.pending)
    if shape.engines:
        assert (first.missing, first.empty) == ((), ())
        assert (last.missing, last.pending, last.empty, last.reason) == ((), (), (), None)


def _read(text: str) -> ServerReading:
    return read_page(text, parse_release(VLLM_VERSION))


def _by_the_book(text: str) -> dict[Key, dict[str, float]]:
    engines: dict[Key, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in READ:
                key = (sample.labels["model_name"], sample.labels["engine"])
                values = engines.setdefault(key, {})
                values[READ[sample.name]] = values.get(READ[sample.name], 0.0) + sample.value
    return engines


def _reasons(published: Published) -> set[str]:
    return {dict(labels)["reason"] for labels in published.get("metrics_page_info", {})}


def _only(reason: str | None) -> set[str]:
    return set() if reason is None else {reason}


def _get(url: str) -> str:
    answer = httpx.get(url, timeout=10, trust_env=False)
    answer.raise_for_status()
    return answer.text
