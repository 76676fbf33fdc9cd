"""What is not measured, or wrongly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import engine, gpu, snapshot

from sidecar.model import Failure, Scope, ServerReading, Snapshot
from sidecar.sources.page_reason import CURES, REASONS
from sidecar.sources.vllm_text import read_page
from sidecar.verdicts import measurement

from .moments import advised, figure, only, said

PAGE = ServerReading((engine(),), 1.0, "vllm:", "kv_cache_usage_perc")
NO_ENGINE = replace(PAGE, engines=())


def page(reading: ServerReading | None) -> list[Snapshot]:
    return [replace(snapshot(0, engine()), server=reading)]


@pytest.mark.parametrize(
    ("reading", "holds"),
    [
        pytest.param(PAGE, False, id="complete"),
        pytest.param(replace(PAGE, missing=("num_preemptions_total",)), True, id="one lacks"),
        pytest.param(replace(PAGE, empty=("num_preemptions_total",)), True, id="declared only"),
        pytest.param(replace(PAGE, pending=("num_preemptions_total",)), False, id="before a step"),
        pytest.param(NO_ENGINE, True, id="no engine"),
        pytest.param(replace(NO_ENGINE, pending=("x",)), False, id="no engine before a step"),
        pytest.param(replace(NO_ENGINE, pending=("x",), missing=("y",)), True, id="and one lacks"),
        pytest.param(None, False, id="no page"),
    ],
)
def test_missing(reading: ServerReading | None, holds: bool) -> None:
    assert bool(said(measurement.MISSING, page(reading))) == holds


LACKS_ONE = replace(PAGE, missing=("num_preemptions_total",))
DECLARED = replace(NO_ENGINE, empty=("num_requests_running",))


@pytest.mark.parametrize(
    ("reading", "reason", "what", "cure"),
    [
        (NO_ENGINE, "log_stats_off", "none of an engine", "--disable-log-stats"),
        (NO_ENGINE, "wrong_endpoint", "is not vLLM's", "the address of vLLM's own"),
        (NO_ENGINE, "router_or_proxy", "router or proxy", "each vLLM server itself"),
        (LACKS_ONE, "router_or_proxy", "router or proxy", "each vLLM server itself"),
        (NO_ENGINE, "ray_exporter", "Ray's", "the exporter of the node"),
        (NO_ENGINE, "connector_only", "KV connector", "ask vLLM's API server"),
        (DECLARED, "declared_only", "no sample of them", "rather than as a library"),
        (LACKS_ONE, None, "lacks num_preemptions_total", "--show-hidden-metrics-for-version"),
        (NO_ENGINE, None, "no series of an engine", "--show-hidden-metrics-for-version"),
    ],
)
def test_missing_says_why_and_the_switch(
    reading: ServerReading, reason: str | None, what: str, cure: str
) -> None:
    verdict = only(measurement.MISSING, page(replace(reading, reason=reason)))
    assert what in verdict.summary
    assert cure in verdict.advice[0].why
    assert figure(verdict, "reason") == (reason or "renamed_or_hidden")
    assert verdict.missing
    assert verdict.severity == "warning"


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != "before_first_step"])
def test_every_reason_has_its_cure(reason: str) -> None:
    verdict = only(measurement.MISSING, page(replace(NO_ENGINE, reason=reason)))
    assert verdict.advice[0].why == CURES[reason]


def test_a_page_of_another_program() -> None:
    other = read_page("process_start_time_seconds 5\npython_info 1\n", None)
    verdict = only(measurement.MISSING, page(other))
    assert figure(verdict, "name_prefix") == "none"


def test_invalid_values_are_named() -> None:
    verdict = only(measurement.INVALID, page(replace(PAGE, invalid={"b": 2, "a": 1})))
    assert figure(verdict, "series_invalid") == "a (1), b (2)"
    assert said(measurement.INVALID, page(PAGE)) == []
    assert said(measurement.INVALID, page(None)) == []


def test_a_gpu_that_cannot_be_read() -> None:
    lost = replace(gpu(1, index=1), memory=None, error="the GPU has fallen off the bus")
    verdict = only(measurement.GPU, [snapshot(0, engine(), gpus=[gpu(1), lost])])
    assert verdict.scope == Scope(gpu="1")
    assert "fallen off the bus" in verdict.advice[0].why
    assert advised(verdict) == {"nvml": None}


def test_all_gpus_at_once() -> None:
    moment = replace(snapshot(0, engine()), gpus=Failure("unknown_error", "recreate the container"))
    verdict = only(measurement.GPU, [moment])
    assert (verdict.scope, figure(verdict, "reason")) == (Scope(), "unknown_error")
    assert "recreate the container" in verdict.summary


@pytest.mark.parametrize("moment", [snapshot(0, engine()), snapshot(0, engine(), gpus=[gpu(1)])])
def test_readable_or_not_asked_for(moment: Snapshot) -> None:
    assert said(measurement.GPU, [moment]) == []
