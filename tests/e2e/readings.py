"""What the servers said, read without any code of the sidecar, so that both can be compared."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "vllm_sidecar_"

Labels = frozenset[tuple[str, str]]
Published = Mapping[str, Mapping[Labels, float]]
"""What the sidecar publishes: values by name, without the prefix, and labels."""


@dataclass(frozen=True, slots=True)
class VllmPage:
    """The part of vLLM's page that the sidecar repeats or derives rates from."""

    kv_usage: float
    running: float
    waiting: float
    preemptions: float
    prompt_tokens: float
    generation_tokens: float
    process_start: float
    finished: float
    preemptions_of_finished: float | None
    """Preemptions that the finished requests had, all together (0.30 and later)."""

    @classmethod
    def parse(cls, text: str) -> VllmPage:
        """The page of a server with one engine; each of these samples must be there once."""
        found: dict[str, list[float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.value)

        def only(name: str) -> float:
            (value,) = found[name]
            return value

        return cls(
            kv_usage=only("vllm:kv_cache_usage_perc"),
            running=only("vllm:num_requests_running"),
            waiting=only("vllm:num_requests_waiting"),
            preemptions=only("vllm:num_preemptions_total"),
            prompt_tokens=only("vllm:prompt_tokens_total"),
            generation_tokens=only("vllm:generation_tokens_total"),
            process_start=only("process_start_time_seconds"),
            finished=sum(found["vllm:request_success_total"]),
            preemptions_of_finished=next(
                iter(found.get("vllm:request_num_preemptions_sum", ())), None
            ),
        )

    def repeated(self) -> dict[str, float]:
        """What the sidecar must repeat as it is, under the sidecar's own names."""
        return {
            "kv_cache_usage_ratio": self.kv_usage,
            "requests_running": self.running,
            "requests_waiting": self.waiting,
            "preemptions_total": self.preemptions,
        }


@dataclass(frozen=True, slots=True)
class RecordedPoll:
    """A poll in a recording: the page that it brought, or the reason why it brought none."""

    at: float
    page: VllmPage | None
    seconds: float | None
    error: str | None


def read_recording(path: Path) -> list[RecordedPoll]:
    """The polls of a recording in format version 1."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header = json.loads(next(lines))
        assert (header["format"], header["version"]) == ("vllm-sidecar-recording", 1)
        return [_recorded_poll(json.loads(line)) for line in lines]


def _recorded_poll(line: Mapping[str, object]) -> RecordedPoll:
    at, said = line["at"], line.get("vllm") or {}
    assert isinstance(at, float | int)
    assert isinstance(said, dict)
    text = said.get("text")
    return RecordedPoll(
        at=at,
        page=VllmPage.parse(text) if text else None,
        seconds=said.get("seconds"),
        error=said.get("error"),
    )


def published_on_page(text: str) -> Published:
    """What the sidecar's `/metrics` says; families that are not its own are left out."""
    published: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                series = published.setdefault(sample.name.removeprefix(PREFIX), {})
                series[frozenset(sample.labels.items())] = sample.value
    return published


def published_in_snapshot(document: Mapping[str, object]) -> Published:
    """What `/api/v1/snapshot` says; histograms, which are no plain number, are left out."""
    indicators = document["indicators"]
    assert isinstance(indicators, dict)
    return {
        name: {
            frozenset(entry["labels"].items()): float(entry["value"])
            for entry in entries
            if isinstance(entry["value"], float | int)
        }
        for name, entries in indicators.items()
    }


def engine_series(published: Published) -> list[str]:
    """The names of all series that speak of an engine."""
    return sorted(
        name
        for name, series in published.items()
        if any(label == "engine" and value for labels in series for label, value in labels)
    )


def of_engine(published: Published, name: str, **more: str) -> float | None:
    """The value of the one engine's series of that name with these further labels, if there."""
    wanted = frozenset(more.items())
    for labels, value in published.get(name, {}).items():
        own = {pair for pair in labels if pair[0] not in {"engine", "model_name"}}
        if own == wanted:
            return value
    return None


class SnapshotCollector:
    """Asks a sidecar for its snapshot several times a second and keeps every different one."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/api/v1/snapshot"
        self._stopping = threading.Event()
        self._by_time: dict[float, Published] = {}
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def snapshots(self) -> dict[float, Published]:
        """What was published, by the time of the poll that it came from."""
        return dict(self._by_time)

    def failures(self) -> Sequence[str]:
        """Requests that the sidecar did not answer with a snapshot."""
        return tuple(self._failures)

    def _run(self) -> None:
        with httpx.Client(timeout=5, trust_env=False) as client:
            while not self._stopping.wait(0.2):
                try:
                    answer = client.get(self._url)
                    answer.raise_for_status()
                    document = answer.json()
                    self._by_time.setdefault(document["at"], published_in_snapshot(document))
                except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                    self._failures.append(f"{time.time():.1f}: {error!r}")

    @classmethod
    @contextlib.contextmanager
    def collecting(cls, url: str) -> Iterator[SnapshotCollector]:
        """Collect while the block runs."""
        collector = cls(url)
        collector._thread.start()
        try:
            yield collector
        finally:
            collector._stopping.set()
            collector._thread.join(10)
