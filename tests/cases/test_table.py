"""The table of cases is sound: this judges the table, not yet the product."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import get_args

import pytest

from cases import build_inputs
from cases.table import CASES, EXCLUDED, INPUTS, RELEASES_OF_FLAGS, Case, Kind, unknown_flags
from sidecar.model import GpuReport, Page
from sidecar.recordings import open_recording
from sidecar.sources.releases import parse_release
from sidecar.sources.vllm_text import read_page

CODES = frozenset(
    {
        "starting",
        "idle",
        "healthy",
        "asleep",
        "restarted",
        "paused",
        "vllm_down",
        "vllm_blind",
        "kv_exhausted",
        "kv_pressure",
        "over_reserved",
        "memory_held",
        "seqs_capped",
        "token_budget_capped",
        "lora_capped",
        "internal_fragmentation",
        "kv_leaked",
        "runaway_request",
        "kv_unexplained",
        "stalled",
        "co_tenant",
        "orphan",
        "memory_growth",
        "headroom_low",
        "host_memory_low",
        "metrics_missing",
        "metrics_invalid",
        "gpu_unreadable",
        "started",
        "no_kv_memory",
        "max_len_too_long",
        "not_enough_free",
        "graph_memory",
        "weights_too_big",
        "activation_peak",
        "single_allocation",
        "allocator_slack",
        "neighbour_left",
        "runtime_oom",
        "host_oom",
        "bad_argument",
        "not_memory",
        "incomplete",
    }
)
"""Every verdict there is."""
SUFFIXES: dict[Kind, frozenset[str]] = {
    "log": frozenset({".log"}),
    "page": frozenset({".prom", ".log"}),
    "pages": frozenset({".prom"}),
    "recording": frozenset({".gz", ".log"}),
    "gpu": frozenset({".gz", ".log"}),
}
MOST_BYTES = 400_000
RESTARTED = frozenset({"C16"})
"""Recordings of two servers, one after the other: counters begin again."""

by_id = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def test_every_public_case_is_in_the_table_or_left_out_for_a_reason() -> None:
    included = [case.id for case in CASES]
    assert len(included) == len(set(included))
    assert len(included) >= 60
    assert not set(included) & set(EXCLUDED)
    assert sorted([*included, *EXCLUDED]) == [f"C{number:02d}" for number in range(1, 83)]
    assert all(reason and "\n" not in reason for reason in EXCLUDED.values())
    assert included == sorted(included)


@by_id
def test_codes_exist_and_do_not_contradict(case: Case) -> None:
    assert case.accepted
    assert case.accepted | case.never | case.never_at_end <= CODES
    assert not case.accepted & case.never
    assert not case.never & case.never_at_end
    assert len(case.accepted) <= 3, "so many truths are none"
    assert case.never, "a case that can go wrong in no way measures nothing"
    assert "incomplete" not in case.accepted


@by_id
def test_flags_are_consistent(case: Case) -> None:
    numbers = [(flag, (low, high)) for flag, low, high in case.bounds]
    if case.interval is not None:
        assert case.flag is not None
        numbers.append((case.flag, case.interval))
    for flag, (low, high) in numbers:
        assert 0 < low <= high
        assert flag not in case.never_flags
        if flag == "--gpu-memory-utilization":
            assert high <= 1.0
    assert len({flag for flag, _ in numbers}) == len(numbers)
    assert case.flag not in case.never_flags
    moves = {flag for flag, _ in case.never_moves}
    assert len(moves) == len(case.never_moves), "both directions: that is never_flags"
    assert not moves & case.never_flags
    for name in {*case.never_flags, *moves} | ({case.flag} if case.flag else set()):
        assert name.startswith("--") or name == "expandable_segments"
    assert case.flag not in unknown_flags(case.version)
    assert case.why
    assert "\n" not in case.why
    assert case.source


def test_flags_are_known_to_the_releases_that_have_them() -> None:
    for since, until in RELEASES_OF_FLAGS.values():
        assert until is None or since < until
    assert "--watermark" in unknown_flags("0.23.0")
    assert "--watermark" not in unknown_flags("0.24.0")
    assert "--swap-space" in unknown_flags("0.18.0")
    assert unknown_flags(None) == frozenset()


@by_id
def test_inputs_fit_their_kind(case: Case) -> None:
    assert case.kind in get_args(Kind)
    suffixes = [Path(name).suffix for name in case.inputs]
    assert set(suffixes) <= SUFFIXES[case.kind]
    if case.kind == "pages":
        assert len(suffixes) >= 2
    else:
        expected = {"log": ".log", "page": ".prom"}.get(case.kind, ".gz")
        assert suffixes.count(expected) == 1
    assert len(set(suffixes)) == len(suffixes) or case.kind == "pages"
    assert all(name.startswith(case.id) for name in case.inputs)


@by_id
def test_inputs_can_be_read(case: Case) -> None:
    for name in case.inputs:
        path = INPUTS / name
        if path.suffix == ".gz":
            _read_recording(case, path)
            continue
        text = path.read_text("utf-8")
        assert text.startswith("# origin: "), "every file says where it comes from"
        assert text.endswith("\n")
        if path.suffix == ".prom":
            server = read_page(text, parse_release(case.version))
            if "metrics_missing" in case.accepted:
                assert not any(engine.running is not None for engine in server.engines)
            else:
                assert server.engines
                assert not server.invalid


def _read_recording(case: Case, path: Path) -> None:
    recording = open_recording(path)
    assert recording.header.name == case.id
    assert recording.header.vllm_version == case.version
    polls = list(recording.polls())
    assert len(polls) > 10
    assert [poll.at for poll in polls] == sorted({poll.at for poll in polls})
    assert (case.kind != "gpu") or all(isinstance(poll.gpus, GpuReport) for poll in polls)
    previous: dict[str, float] = {}
    for poll in polls:
        if isinstance(poll.gpus, GpuReport):
            for gpu in poll.gpus.gpus:
                if gpu.memory is not None:
                    reserved = gpu.memory.reserved_bytes or 0
                    parts = gpu.memory.used_bytes + gpu.memory.free_bytes + reserved
                    assert parts == gpu.memory.total_bytes
                    assert gpu.memory.free_bytes >= 0
        if not isinstance(poll.vllm, Page):
            continue
        server = read_page(poll.vllm.text, parse_release(poll.vllm_version))
        assert server.engines
        assert not server.invalid
        assert not server.missing
        for engine in server.engines:
            totals = {
                f"{engine.engine} {name}": value
                for name, value in (
                    ("prompt", engine.prompt_tokens_total),
                    ("generation", engine.generation_tokens_total),
                    ("preemptions", engine.preemptions_total),
                    ("finished", engine.finished_total),
                )
                if value is not None
            }
            if case.id in RESTARTED:
                continue
            assert all(value >= previous.get(name, 0.0) for name, value in totals.items())
            previous.update(totals)


def test_no_input_is_without_a_case_and_all_are_small() -> None:
    named = {name for case in CASES for name in case.inputs}
    assert {path.name for path in INPUTS.iterdir()} == named
    assert sum(path.stat().st_size for path in INPUTS.iterdir()) < MOST_BYTES


def test_inputs_hold_no_paths_of_a_machine() -> None:
    for path in INPUTS.iterdir():
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        for fragment in ("/home/", "/root/", "/srv/", "/mnt/", "/data/", "api_key"):
            assert fragment not in text, f"{path.name} has {fragment}"


def test_what_is_made_from_figures_is_what_is_committed() -> None:
    """Compared unpacked: another zlib may pack the same text into other bytes."""
    for name, content in {**build_inputs.recordings(), **build_inputs.page_files()}.items():
        committed = (INPUTS / name).read_bytes()
        if name.endswith(".gz"):
            content, committed = gzip.decompress(content), gzip.decompress(committed)
        assert content == committed, f"{name}: run `python -m cases.build_inputs` in tests/"
