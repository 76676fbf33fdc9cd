"""Advice is followed on a real vLLM, and what it announced is held against what comes of it.

One run drives a server into an exhausted KV cache, reads the sidecar's advice, and starts the
server again with each advised flag in turn under the same load; the server as it was comes first
and last, so that a machine that grows slower or faster meanwhile shows. Then a server whose number
of sequences is the limit. It takes about twelve minutes on two cores, and two or three more the
first time, when the vLLM environment is made. `E2E_VLLM_ENVIRONMENT` names one that is there.

    pytest tests/e2e/test_the_loop_closes.py -m e2e -s
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest

from .load import Load, load_on
from .readings import VllmPage
from .servers import Server, ServerError, VllmOptions, free_port, sidecar, vllm_server
from .vllm_environment import DEFAULT_PATH, make_environment, make_model

# The first test's time includes the whole run and, once, the installation of vLLM.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

Say = Callable[[str], None]

# 12 requests of 560 to 840 tokens want about 65 blocks of 128 tokens in the end. Two processors
# still gain a lot from a batch of 10 instead of 5, and little from one of 20 instead of 10: what
# more blocks are worth must stand out from the noise.
LOAD = Load(clients=12, prompt_tokens=(60, 140), output_tokens=(500, 700))
SCARCE = VllmOptions(kv_blocks=24, max_num_seqs=32)
CAPPED = VllmOptions(kv_blocks=400, max_num_seqs=4)

MORE_KV, WATERMARK, SEQUENCES = "--num-gpu-blocks-override", "--watermark", "--max-num-seqs"

SETTLING_SECONDS = 15
"""All clients start with their first token at once; by then their requests are well mixed."""
WINDOW_SECONDS = 60
SHORT_WINDOW_SECONDS = 40
"""Enough where the effect is several times the noise."""
BIN_SECONDS = 10
LARGEST_DRIFT_RATIO = 0.15
"""Between the two runs of the unchanged server; noise alone is about a tenth."""

RESAMPLINGS = 2000
ANNOUNCED_RANGE = re.compile(r"tokens per second between ([\d,]+) and ([\d,]+)")
SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Advice:
    """A flag to change, and what that should do."""

    flag: str
    value: str | None
    expect: str

    @property
    def announced_tokens_per_second(self) -> tuple[float, float] | None:
        """The range that it gives, if it gives one."""
        found = ANNOUNCED_RANGE.search(self.expect)
        if found is None:
            return None
        low, high = (float(figure.replace(",", "")) for figure in found.groups())
        return low, high


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as the sidecar published it at one moment."""

    code: str
    severity: str
    summary: str
    advice: tuple[Advice, ...]

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Verdict:
        return cls(
            code=document["code"],
            severity=document["severity"],
            summary=document["summary"],
            advice=tuple(
                Advice(item["flag"], item["to"], item["expect"]) for item in document["advice"]
            ),
        )

    def advice_on(self, flag: str) -> Advice:
        found = next((item for item in self.advice if item.flag == flag), None)
        assert found is not None, f"no advice on {flag}: {self.advice}"
        assert found.value is not None, f"no value advised: {found}"
        return found


@dataclass(frozen=True, slots=True)
class Bin:
    """What vLLM's counters gained between two of its pages."""

    seconds: float
    tokens: float
    preemptions: float
    finished: float
    preemptions_of_finished: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One server under the load: what it did, and what the sidecar concluded meanwhile."""

    name: str
    options: VllmOptions
    bins: tuple[Bin, ...]
    moments: tuple[tuple[Verdict, ...], ...]
    running: float
    errors: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        return tokens_per_second(self.bins)

    @property
    def preemptions_per_finished(self) -> float:
        """By vLLM's counter, which counts a preemption when the request goes on."""
        return sum(each.preemptions for each in self.bins) / self._finished

    @property
    def preemptions_told_by_finished(self) -> float | None:
        """The same ratio as the finished requests themselves tell it, each at its end."""
        told = [each.preemptions_of_finished for each in self.bins]
        known = [count for count in told if count is not None]
        return sum(known) / self._finished if known == told else None

    @property
    def _finished(self) -> float:
        return sum(each.finished for each in self.bins)

    def strongest(self, code: str) -> Verdict | None:
        """That verdict at its gravest moment; of equally grave ones the last has seen the most."""
        held = [verdict for moment in self.moments for verdict in moment if verdict.code == code]
        return max(reversed(held), key=lambda v: SEVERITIES.index(v.severity), default=None)

    @property
    def last_codes(self) -> tuple[str, ...]:
        return tuple(verdict.code for verdict in self.moments[-1])


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the interval that holds it in 95 of 100 resamplings."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Lever:
    """Advice that was followed."""

    advice: Advice
    trial: Trial
    gain: Estimate
    """Share of tokens a second that was gained; a loss is negative."""
    preemptions_ratio: float | None
    """Preemptions per finished request, as a share of what they were; None if there were none."""


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """The server that has too few blocks, the advice that it led to, and what came of it."""

    baselines: tuple[Trial, Trial]
    verdict: Verdict
    levers: dict[str, Lever]

    @property
    def tokens_per_second(self) -> float:
        return mean(trial.tokens_per_second for trial in self.baselines)

    @property
    def preemptions_per_finished(self) -> float:
        return mean(trial.preemptions_per_finished for trial in self.baselines)


@dataclass(frozen=True, slots=True)
class Cap:
    """The server that may run too few requests, and the same with as many as advised."""

    before: Trial
    verdict: Verdict
    lever: Lever


@dataclass(frozen=True, slots=True)
class Evidence:
    exhaustion: Exhaustion
    cap: Cap


@pytest.fixture(scope="module")
def evidence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    started = time.monotonic()

    def say(line: str) -> None:
        # Shown as it happens, also when the tests pass: the figures are part of the result.
        with capture.global_and_fixture_disabled():
            print(f"\n[{time.monotonic() - started:6.1f} s] {line}", end="", flush=True)

    python = make_environment(Path(os.environ.get("E2E_VLLM_ENVIRONMENT", DEFAULT_PATH)), say)
    folder = tmp_path_factory.mktemp("the-loop-closes")
    bench = Bench(python, make_model(folder / "tiny"), folder, say)
    found = Evidence(_follow_exhaustion(bench), _follow_cap(bench))
    say(f"all figures are there:\n{_table(found)}\n")
    return found


class Bench:
    """Where servers are tried, one after the other, each in a fresh folder."""

    def __init__(self, python: Path, model: Path, folder: Path, say: Say) -> None:
        self._python = python
        self._model = model
        self._folder = folder
        self._say = say
        self._trials = 0

    def try_out(self, name: str, options: VllmOptions, seconds: int = WINDOW_SECONDS) -> Trial:
        """Put the load on a server with these flags, the sidecar beside it, and measure."""
        self._trials += 1
        folder = self._folder / f"{self._trials}"
        port = free_port()
        with (
            sidecar(
                folder,
                f"http://127.0.0.1:{port}",
                vllm_arguments=options.arguments(self._model, port),
                vllm_log=folder / "vllm.log",
            ) as watcher,
            vllm_server(self._python, self._model, folder, port, options) as vllm,
            load_on(vllm.url, LOAD) as load,
        ):
            moments = [_verdicts(watcher) for _ in _ticks(SETTLING_SECONDS)]
            pages = [_page(vllm)]
            for tick in _ticks(seconds):
                moments.append(_verdicts(watcher))
                if tick % BIN_SECONDS == 0:
                    pages.append(_page(vllm))
            errors = load.report().errors
            # Whatever is still out has been measured; waiting for it would take long.
            vllm.kill()
        trial = Trial(
            name=name,
            options=options,
            bins=tuple(_bin(*pair) for pair in pairwise(pages)),
            moments=tuple(moments),
            running=mean(page.running for _, page in pages),
            errors=errors,
        )
        self._say(
            f"{name}: {trial.tokens_per_second:,.0f} tokens/s, "
            f"{trial.preemptions_per_finished:.2f} preemptions per finished request"
        )
        return trial


def _follow_exhaustion(bench: Bench) -> Exhaustion:
    first = bench.try_out("as it was", SCARCE)
    verdict = first.strongest("kv_exhausted")
    assert verdict is not None, f"no kv_exhausted on a full cache, but {first.last_codes}"
    advised = [verdict.advice_on(flag) for flag in (MORE_KV, WATERMARK, SEQUENCES)]
    trials = [bench.try_out(_written(advice), _followed(SCARCE, advice)) for advice in advised]
    last = bench.try_out("as it was", SCARCE)
    return Exhaustion(
        baselines=(first, last),
        verdict=verdict,
        levers={
            advice.flag: _compare(advice, trial, first, last)
            for advice, trial in zip(advised, trials, strict=True)
        },
    )


def _follow_cap(bench: Bench) -> Cap:
    before = bench.try_out("4 sequences", CAPPED, SHORT_WINDOW_SECONDS)
    verdict = before.strongest("seqs_capped")
    assert verdict is not None, f"no seqs_capped with {LOAD.clients} clients: {before.last_codes}"
    advice = verdict.advice_on(SEQUENCES)
    after = bench.try_out(_written(advice), _followed(CAPPED, advice), SHORT_WINDOW_SECONDS)
    return Cap(before, verdict, _compare(advice, after, before))


def _written(advice: Advice) -> str:
    return f"{advice.flag} {advice.value}"


def _followed(options: VllmOptions, advice: Advice) -> VllmOptions:
    assert advice.value is not None
    return options.with_flag(advice.flag, advice.value)


def _compare(advice: Advice, trial: Trial, *baselines: Trial) -> Lever:
    before = mean(baseline.preemptions_per_finished for baseline in baselines)
    return Lever(
        advice=advice,
        trial=trial,
        gain=estimate_gain(trial.bins, [baseline.bins for baseline in baselines]),
        preemptions_ratio=trial.preemptions_per_finished / before if before else None,
    )


def tokens_per_second(bins: Sequence[Bin]) -> float:
    """Prompt and generated tokens, as the advice counts them."""
    return sum(each.tokens for each in bins) / sum(each.seconds for each in bins)


def estimate_gain(
    after: Sequence[Bin], baselines: Sequence[Sequence[Bin]], seed: int = 1
) -> Estimate:
    """The gain in tokens a second over the mean of what they were, each baseline counting alike.

    The interval comes from bins drawn again from each sample (bootstrap).
    """
    draw = random.Random(seed)

    def drawn(bins: Sequence[Bin]) -> Sequence[Bin]:
        return draw.choices(bins, k=len(bins))

    gains = sorted(
        _gain(drawn(after), [drawn(before) for before in baselines]) for _ in range(RESAMPLINGS)
    )
    tail = round(0.025 * RESAMPLINGS)
    return Estimate(_gain(after, baselines), gains[tail], gains[-1 - tail])


def _gain(after: Sequence[Bin], baselines: Sequence[Sequence[Bin]]) -> float:
    return tokens_per_second(after) / mean(map(tokens_per_second, baselines)) - 1


def _ticks(seconds: int) -> Iterator[int]:
    """1, 2, 3 ... once a second, however long the caller takes in between."""
    began = time.monotonic()
    for tick in range(1, seconds + 1):
        time.sleep(max(0.0, began + tick - time.monotonic()))
        yield tick


def _verdicts(watcher: Server) -> tuple[Verdict, ...]:
    document = _get(watcher, "/api/v1/diagnosis").json()
    return tuple(Verdict.parse(entry) for entry in document["verdicts"])


def _page(vllm: Server) -> tuple[float, VllmPage]:
    text = _get(vllm, "/metrics").text
    return time.monotonic(), VllmPage.parse(text)


def _get(server: Server, path: str) -> httpx.Response:
    try:
        answer = httpx.get(f"{server.url}{path}", timeout=10, trust_env=False)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise ServerError(f"{server.name} {path}: {error}\n{server.last_lines()}") from error
    return answer


def _bin(before: tuple[float, VllmPage], after: tuple[float, VllmPage]) -> Bin:
    (began, first), (ended, last) = before, after
    told = (first.preemptions_of_finished, last.preemptions_of_finished)
    return Bin(
        seconds=ended - began,
        tokens=last.prompt_tokens
        + last.generation_tokens
        - first.prompt_tokens
        - first.generation_tokens,
        preemptions=last.preemptions - first.preemptions,
        finished=last.finished - first.finished,
        preemptions_of_finished=None if told[0] is None or told[1] is None else told[1] - told[0],
    )


def _table(found: Evidence) -> str:
    """What was announced and what was measured, side by side."""
    exhaustion, cap = found.exhaustion, found.cap
    first, last = exhaustion.baselines
    rows = [
        ("server", "tokens/s", "gain", "preempted", "of before", "told", "runs", "announced"),
        _row(first),
        *(_row(lever.trial, lever) for lever in exhaustion.levers.values()),
        _row(last),
        _row(cap.before),
        _row(cap.lever.trial, cap.lever),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(
        [
            f"The verdict: {exhaustion.verdict.severity}: {exhaustion.verdict.summary}",
            *lines,
            "preempted: preemptions per finished request (told: by the finished ones themselves)",
        ]
    )


def _row(trial: Trial, lever: Lever | None = None) -> tuple[str, ...]:
    told = trial.preemptions_told_by_finished
    ratio = None if lever is None else lever.preemptions_ratio
    return (
        trial.name,
        f"{trial.tokens_per_second:,.0f}",
        "" if lever is None else _written_gain(lever.gain),
        f"{trial.preemptions_per_finished:.2f}",
        "" if ratio is None else f"{ratio:.0%}",
        "" if told is None else f"{told:.2f}",
        f"{trial.running:.0f}",
        "" if lever is None else lever.advice.expect,
    )


def _written_gain(gain: Estimate) -> str:
    return f"{gain.value:+.0%} ({gain.low:+.0%} to {gain.high:+.0%})"


def test_every_server_answered_its_clients(evidence: Evidence) -> None:
    exhaustion, cap = evidence.exhaustion, evidence.cap
    trials = [
        *exhaustion.baselines,
        *(lever.trial for lever in exhaustion.levers.values()),
        cap.before,
        cap.lever.trial,
    ]
    assert {trial.name: trial.errors for trial in trials if trial.errors} == {}


def test_advice_on_a_full_cache_comes_in_the_order_in_which_to_try_it(evidence: Evidence) -> None:
    flags = [advice.flag for advice in evidence.exhaustion.verdict.advice]
    assert [flag for flag in flags if flag in evidence.exhaustion.levers] == [
        MORE_KV,
        WATERMARK,
        SEQUENCES,
    ]
    assert flags[0] == MORE_KV
    assert evidence.exhaustion.levers[MORE_KV].advice.value == str(2 * SCARCE.kv_blocks)
    assert evidence.exhaustion.levers[WATERMARK].advice.value == "0.3"


def holds_for_both(exhaustion: Exhaustion, holds: Callable[[float], bool]) -> bool:
    """Whether it holds against the tokens a second of the unchanged server, first and last.

    If that server was not equally fast, the machine changed its speed meanwhile. Then only what
    both times say says anything about a flag; of the rest nothing is known, and the test skipped.
    """
    first, last = (trial.tokens_per_second for trial in exhaustion.baselines)
    if holds(first) == holds(last):
        return holds(first)
    if abs(first - last) / max(first, last) > LARGEST_DRIFT_RATIO:
        pytest.skip(
            f"the machine is not steady: the unchanged server made {first:,.0f} tokens/s at first "
            f"and {last:,.0f} at last, and it holds for one of them only"
        )
    return holds(exhaustion.tokens_per_second)


def assert_halved(lever: Lever) -> None:
    assert lever.preemptions_ratio is not None
    assert lever.preemptions_ratio <= 0.5


def test_more_blocks_halve_preemptions(evidence: Evidence) -> None:
    assert_halved(evidence.exhaustion.levers[MORE_KV])


def test_more_blocks_gain_throughput(evidence: Evidence) -> None:
    after = evidence.exhaustion.levers[MORE_KV].trial.tokens_per_second
    assert holds_for_both(evidence.exhaustion, lambda before: after / before - 1 >= 0.15)


def test_the_watermark_halves_preemptions(evidence: Evidence) -> None:
    assert_halved(evidence.exhaustion.levers[WATERMARK])


def test_the_watermark_keeps_throughput(evidence: Evidence) -> None:
    after = evidence.exhaustion.levers[WATERMARK].trial.tokens_per_second
    assert holds_for_both(evidence.exhaustion, lambda before: abs(after / before - 1) <= 0.3)


def test_the_cap_ends_preemptions(evidence: Evidence) -> None:
    assert evidence.exhaustion.levers[SEQUENCES].trial.preemptions_per_finished < 0.1


def test_the_cap_costs_what_was_announced(evidence: Evidence) -> None:
    lever = evidence.exhaustion.levers[SEQUENCES]
    announced = lever.advice.announced_tokens_per_second
    assert announced is not None, f"no range in {lever.advice.expect!r}"
    low, high = announced
    measured, then = lever.trial.tokens_per_second, evidence.exhaustion.baselines[0]

    def is_within(before: float) -> bool:
        # It was announced as a share of what the first server made.
        speed = before / then.tokens_per_second
        return 0.9 * low * speed <= measured <= 1.1 * high * speed

    assert holds_for_both(evidence.exhaustion, is_within)
    # On a steady machine the range as it was announced counts, not one moved with the mean.
    assert is_within(then.tokens_per_second)


def test_the_capped_server_is_exhausted_no_more(evidence: Evidence) -> None:
    assert evidence.exhaustion.levers[SEQUENCES].trial.strongest("kv_exhausted") is None


def test_more_sequences_gain_throughput_where_they_are_the_limit(evidence: Evidence) -> None:
    lever = evidence.cap.lever
    assert lever.advice.value is not None
    assert CAPPED.max_num_seqs < int(lever.advice.value) <= LOAD.clients
    assert lever.gain.low > 0
