"""Turns the published frame into Prometheus text.

Families are rebuilt from the frame at each rendering, so a value that is no longer measured is
no longer exported. Rendering happens once a frame and format, however many clients read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sidecar import indicators, telemetry, verdict_samples
from sidecar.model import Declaration, Frame, Histogram, Sample, Unavailable

NAMESPACE = "vllm_sidecar_"
_MOST_FORMATS = 8
"""A client may ask for any version of a format, and each would be kept."""

UNAVAILABLE = Declaration(
    "unavailable_info",
    "Always 1; an indicator that could not be computed at the last poll, and why.",
    labels=("indicator", "reason", "model_name", "engine", "gpu"),
)
DECLARATIONS = (
    *indicators.DECLARATIONS,
    verdict_samples.VERDICT,
    *telemetry.DECLARATIONS,
    UNAVAILABLE,
)
OWN_NAMES = frozenset(declaration.name for declaration in telemetry.DECLARATIONS)
"""Names that speak of the sidecar itself and not of what it watches."""


def families(frame: Frame) -> Iterator[Metric]:
    """One family for each declaration that has samples, in the order of declaration."""
    grouped: dict[str, list[Sample]] = {}
    for sample in (*frame.samples, *_unavailable_samples(frame.unavailable)):
        grouped.setdefault(sample.declaration.name, []).append(sample)
    for declaration in DECLARATIONS:
        samples = grouped.get(declaration.name)
        if samples:
            yield _family(declaration, samples)


def render_families(frame: Frame, leave_out: Collection[str] = ()) -> bytes:
    """The text exposition of one frame alone, less the names to leave out."""
    registry = CollectorRegistry()
    registry.register(_Families(frame, leave_out))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)
class _Families(Collector):
    frame: Frame
    leave_out: Collection[str]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        left_out = {NAMESPACE + name.removesuffix("_total") for name in self.leave_out}
        return (
            family
            for family in families(self.frame)
            if family.name.removesuffix("_total") not in left_out
        )


def _unavailable_samples(unavailable: Iterable[Unavailable]) -> list[Sample]:
    """Windows and the like are left out: an indicator is missing once, not once a window."""
    seen: dict[tuple[str, ...], Sample] = {}
    for item in unavailable:
        given = dict(zip(item.declaration.labels, item.labels, strict=False))
        where = tuple(given.get(name, "") for name in ("model_name", "engine", "gpu"))
        labels = (item.declaration.name, item.reason, *where)
        seen[labels] = Sample(UNAVAILABLE, labels, 1.0)
    return list(seen.values())


def _family(declaration: Declaration, samples: Iterable[Sample]) -> Metric:
    name = NAMESPACE + declaration.name
    if declaration.kind == "histogram":
        histogram = HistogramMetricFamily(name, declaration.help, labels=declaration.labels)
        for sample in samples:
            if isinstance(sample.value, Histogram):
                buckets = [(_bound(bound), count) for bound, count in sample.value.buckets]
                histogram.add_metric(list(sample.labels), buckets, sample.value.sum)
        return histogram
    kind = CounterMetricFamily if declaration.kind == "counter" else GaugeMetricFamily
    family = kind(name, declaration.help, labels=declaration.labels)
    for sample in samples:
        if not isinstance(sample.value, Histogram):
            family.add_metric(list(sample.labels), sample.value)
    return family


def _bound(upper: float) -> str:
    return "+Inf" if upper == float("inf") else repr(upper)


@dataclass(slots=True, eq=False)
class Board(Collector):
    """Where the poller hangs the latest frame and readers find it.

    Publishing is one assignment, so a reader has either this frame or the one before, whole.
    """

    frame: Frame | None = None
    _rendered: tuple[Frame | None, dict[str, tuple[bytes, str]]] = field(
        default_factory=lambda: (None, {})
    )
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def publish(self, frame: Frame) -> None:
        self.frame = frame

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return families(self.frame) if self.frame is not None else []

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type for an `Accept` header."""
        frame = self.frame
        if self._rendered[0] is not frame or frame is None:
            self._rendered = (frame, {})
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encoder, content_type = choose_encoder("")
        cache = self._rendered[1]
        if content_type not in cache:
            if len(cache) >= _MOST_FORMATS:
                cache.clear()
            cache[content_type] = (encoder(self._registry), content_type)
        return cache[content_type]
