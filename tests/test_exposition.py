"""What is published: its names, its text, and that nothing outlives its source."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from frames import GPUS, REFUSED, UNIX, busy_frame, page, play
from prometheus_client.parser import text_string_to_metric_families

from sidecar.exposition import DECLARATIONS, NAMESPACE, OWN_NAMES, Board, families
from sidecar.model import (
    Declaration,
    Failure,
    Frame,
    GpuReading,
    GpuReport,
    Histogram,
    Poll,
    Sample,
)
from sidecar.pipeline import Pipeline
from sidecar.recordings import open_recording
from sidecar.settings import Thresholds

RESERVED_LABELS = {"le", "quantile", "job", "instance", "exported_job"}
"""They belong to the text format and to whoever scrapes."""


def exposed(frame: Frame | None, accept: str = "") -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by full name, as a reader gets them."""
    board = Board()
    if frame is not None:
        board.publish(frame)
    text = board.render(accept)[0].decode()
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def names_about(frame: Frame, *labels: str) -> set[str]:
    """Names of the samples that carry any of these labels."""
    return {
        name
        for name, samples in exposed(frame).items()
        for given, _ in samples
        if any(given.get(label) for label in labels) and not name.endswith("unavailable_info")
    }


# ---------------------------------------------------------------------------------------------
# Declarations.


def test_every_name_is_declared_once() -> None:
    counts = Counter(declaration.name for declaration in DECLARATIONS)
    assert [name for name, count in counts.items() if count > 1] == []
    without_total = Counter(declaration.name.removesuffix("_total") for declaration in DECLARATIONS)
    assert [name for name, count in without_total.items() if count > 1] == []


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda declaration: declaration.name)
def test_names_follow_the_rules(declaration: Declaration) -> None:
    name, kind = declaration.name, declaration.kind
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert not name.startswith(NAMESPACE)
    assert name.endswith("_total") == (kind == "counter")
    forbidden = (
        r"_(percent|perc|pct|count|sum|bucket|created|ms|millis\w*|minutes|hours|mib|gib|mb)"
    )
    assert not re.search(rf"{forbidden}(_|$)", name)
    for word in ("seconds", "bytes", "ratio"):
        if re.search(rf"(_|^){word}(_|$)", name):
            assert re.search(rf"{word}(_total)?$|{word}_per_\w+$|_{word}_\w+_(total|ratio)$", name)
    assert not set(declaration.labels) & RESERVED_LABELS
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) for label in declaration.labels)
    assert len(set(declaration.labels)) == len(declaration.labels)


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda declaration: declaration.name)
def test_helps_are_one_sentence_for_people(declaration: Declaration) -> None:
    assert re.fullmatch(r"([A-Z0-9`]|vLLM).{10,}\.", declaration.help)
    assert "\n" not in declaration.help
    assert "  " not in declaration.help


def test_ratios_lie_between_0_and_1_on_real_recordings() -> None:
    recordings = Path(__file__).parent / "captures" / "recordings"
    bounded = {"kv_cache_usage_ratio", "kv_cache_usage_peak_ratio", "gpu_memory_used_ratio"}
    seen = set()
    for name in ("preempt-storm", "kill-restart"):
        pipeline = Pipeline(Thresholds())
        for poll in open_recording(recordings / f"{name}.jsonl.gz").polls():
            for sample in pipeline.advance(poll).samples:
                if sample.declaration.name in bounded:
                    assert isinstance(sample.value, float)
                    assert 0.0 <= sample.value <= 1.0
                    seen.add(sample.declaration.name)
    assert {"kv_cache_usage_ratio", "kv_cache_usage_peak_ratio"} <= seen


# ---------------------------------------------------------------------------------------------
# Frames become text.


def test_a_busy_server_shows_the_named_indicators() -> None:
    samples = exposed(busy_frame())
    of_the_engine = {"model_name": "m", "engine": "0"}
    assert samples[f"{NAMESPACE}kv_cache_usage_ratio"] == [(of_the_engine, 0.25)]
    assert samples[f"{NAMESPACE}requests_running"] == [(of_the_engine, 3.0)]
    rates = samples[f"{NAMESPACE}preemptions_per_second"]
    assert len(rates) >= 2
    assert [value for _, value in rates] == pytest.approx([2.0] * len(rates))
    assert f"{NAMESPACE}gpu_memory_used_bytes" in samples
    assert samples[f"{NAMESPACE}source_up"] == [
        ({"source": "vllm"}, 1.0),
        ({"source": "nvml"}, 1.0),
    ]
    assert "process_start_time_seconds" in samples


def test_every_engine_of_every_model_has_its_own_series() -> None:
    running = exposed(busy_frame(engines=3))[f"{NAMESPACE}requests_running"]
    assert [labels["engine"] for labels, _ in running] == ["0", "1", "2"]


def test_before_the_first_poll_only_the_process_is_shown() -> None:
    samples = exposed(None)
    assert samples
    assert not [name for name in samples if name.startswith(NAMESPACE)]


def test_every_sample_is_declared_and_shown() -> None:
    frame = busy_frame()
    shown = {family.name.removesuffix("_total") for family in families(frame)}
    measured = {
        (NAMESPACE + sample.declaration.name).removesuffix("_total") for sample in frame.samples
    }
    assert measured <= shown
    declared = {declaration.name for declaration in DECLARATIONS}
    assert {sample.declaration.name for sample in frame.samples} <= declared
    assert declared >= OWN_NAMES


def test_no_value_is_infinite_or_no_number() -> None:
    for frame in play(page(at=0), REFUSED, *(page(at=at) for at in range(20))):
        for samples in exposed(frame).values():
            for _, value in samples:
                assert value - value == 0.0


def test_a_histogram_is_whole() -> None:
    declaration = next(d for d in DECLARATIONS if d.kind == "histogram")
    value = Histogram(((0.5, 1.0), (float("inf"), 3.0)), 2.5, 3.0)
    frame = Frame(UNIX, busy_frame().snapshot, (Sample(declaration, ("m", "0"), value),), ())
    samples = exposed(frame)
    name = NAMESPACE + declaration.name
    assert [(labels["le"], count) for labels, count in samples[f"{name}_bucket"]] == [
        ("0.5", 1.0),
        ("+Inf", 3.0),
    ]
    assert samples[f"{name}_sum"][0][1] == 2.5
    assert samples[f"{name}_count"][0][1] == 3.0


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a{b}", "Größe", ""])
def test_label_values_are_escaped(name: str) -> None:
    written = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    running = exposed(busy_frame(written))[f"{NAMESPACE}requests_running"]
    assert [labels["model_name"] for labels, _ in running] == [name]


# ---------------------------------------------------------------------------------------------
# What is gone is gone.


@pytest.mark.parametrize("reason", ["refused", "closed", "http_status", "unresolved"])
def test_a_server_that_is_gone_leaves_no_series(reason: str) -> None:
    before, after = play(page(at=1), Failure(reason, "gone"))
    assert f"{NAMESPACE}requests_running" in names_about(before, "engine")
    assert names_about(after, "engine", "model_name") == set()
    assert exposed(after)[f"{NAMESPACE}source_up"][0] == ({"source": "vllm"}, 0.0)
    assert f"{NAMESPACE}gpu_memory_used_bytes" in names_about(after, "gpu")


def test_a_server_that_does_not_answer_leaves_no_series_after_the_second_time() -> None:
    late = Failure("timeout", "late")
    before, waiting, once, twice = play(page(at=1), None, late, late)
    assert names_about(once, "engine") == names_about(waiting, "engine")
    assert f"{NAMESPACE}requests_running" in names_about(before, "engine")
    assert names_about(twice, "engine") == set()


def test_an_engine_that_is_gone_leaves_no_series() -> None:
    before, after = play(page(engines=2, at=1), page(engines=1, at=2))
    assert len(exposed(before)[f"{NAMESPACE}requests_running"]) == 2
    assert len(exposed(after)[f"{NAMESPACE}requests_running"]) == 1


@pytest.mark.parametrize(
    "gpus", [None, Failure("driver_not_loaded", "no driver"), GpuReport((), 0)]
)
def test_gpus_that_are_gone_leave_no_series(gpus: GpuReport | Failure | None) -> None:
    pipeline = Pipeline()
    before = pipeline.advance(Poll(UNIX, page(at=1), GPUS))
    assert f"{NAMESPACE}gpu_memory_used_bytes" in names_about(before, "gpu")
    after = pipeline.advance(Poll(UNIX + 1, page(at=2), gpus))
    assert names_about(after, "gpu", "uuid") == set()
    assert f"{NAMESPACE}requests_running" in names_about(after, "engine")


def test_a_gpu_that_cannot_be_read_shows_nothing_but_that() -> None:
    broken = GpuReport((GpuReading(0, "GPU-1", "H200", error="has fallen off the bus"),), 0.001)
    (frame,) = play(page(at=1), gpus=broken)
    values = [
        value
        for name, samples in exposed(frame).items()
        for labels, value in samples
        if "uuid" in labels and "_memory_" in name
    ]
    assert values == []
    assert {
        each["gpu"] for each in unavailable(frame) if each["indicator"] == "gpu_memory_used_bytes"
    } == {"0"}


# ---------------------------------------------------------------------------------------------
# What could not be computed, and why.


def unavailable(frame: Frame) -> list[dict[str, str]]:
    return [labels for labels, _ in exposed(frame).get(f"{NAMESPACE}unavailable_info", [])]


def test_what_is_not_known_yet_says_why() -> None:
    (frame,) = play(page(at=0))
    rates = [each for each in unavailable(frame) if each["indicator"] == "preemptions_per_second"]
    assert len(rates) == 1, "once, and not once for each window"
    assert rates[0]["reason"]
    assert (rates[0]["model_name"], rates[0]["engine"], rates[0]["gpu"]) == ("m", "0", "")


def test_nothing_is_both_shown_and_unavailable() -> None:
    for frame in play(*(page(at=at) for at in range(0, 40, 2)), REFUSED, page(at=0)):
        for sample, missing in (
            (sample, missing)
            for missing in frame.unavailable
            for sample in frame.samples
            if sample.declaration is missing.declaration
        ):
            assert sample.labels != missing.labels


def test_reasons_are_few_short_words() -> None:
    """They are labels, so a reason must not hold a value that changes."""
    frames = chain(
        play(page(at=0), REFUSED, page(at=1), *(page(at=at) for at in range(30))),
        play(page(at=0), gpus=None),
    )
    for frame in frames:
        for each in unavailable(frame):
            assert re.fullmatch(r"[a-z][a-z0-9_ ]{2,60}", each["reason"]), each


# ---------------------------------------------------------------------------------------------
# Rendering.


def test_a_frame_is_encoded_once_for_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Frame] = []
    original = families

    def counting(frame: Frame) -> object:
        encoded.append(frame)
        return original(frame)

    monkeypatch.setattr("sidecar.exposition.families", counting)
    board = Board()
    first, second = play(page(at=1), page(at=2))
    board.publish(first)
    answers = {board.render("")[0] for _ in range(10)}
    assert len(answers) == 1
    assert encoded == [first]
    board.render("application/openmetrics-text; version=1.0.0")
    assert encoded == [first, first]
    board.publish(second)
    assert board.render("")[0] not in answers
    assert encoded == [first, first, second]


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "text/plain; version=x.y",
        "application/openmetrics-text; version=1.0.0ÿ",
        "application/openmetrics-text; version=",
        ";;;,,,===",
        "*/*",
        "application/json",
        "\ud800",
    ],
)
def test_an_accept_header_that_makes_no_sense_gets_plain_text(accept: str) -> None:
    board = Board()
    board.publish(busy_frame())
    body, content_type = board.render(accept)
    assert NAMESPACE.encode() in body
    assert content_type.startswith(("text/plain; version=0.0.4", "application/openmetrics-text"))


def test_formats_that_are_kept_are_few() -> None:
    board = Board()
    board.publish(busy_frame())
    for minor in range(100):
        board.render(f"application/openmetrics-text; version=1.{minor}.0")
    assert len(board._rendered[1]) <= 8
