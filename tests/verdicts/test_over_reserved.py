"""The KV cache is far too big for what was seen: how far it could come down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import CACHE, GIB

from sidecar.model import Snapshot
from sidecar.startlog.start import Start
from sidecar.verdicts import over_reserved

from .moments import advised, avoided, figure, only, own, polls, severity

FLAGS = {"gpu_memory_utilization": "0.9", "max_model_len": "4096"}
LOG = Start(kv_cache_bytes_per_rank=40 * GIB, weights_bytes_per_rank=16 * GIB)


def little_used(seconds: float = 30, *, every: float = 1.0, **fields: Any) -> list[Snapshot]:
    given = {"running": 2.0, "kv_usage_ratio": 0.1, **fields}
    return polls(seconds, every=every, gpus=lambda _: [own(70)], **given)


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(little_used(20), True, id="20 s of serving"),
        pytest.param(little_used(19), False, id="19 s"),
        pytest.param(little_used(running=0.0), False, id="nothing runs"),
        pytest.param(little_used(kv_usage_ratio=0.49), True, id="just under half"),
        pytest.param(little_used(kv_usage_ratio=0.5), False, id="half"),
        pytest.param(
            little_used(kv_usage_ratio=lambda t: 0.6 if t == 1 else 0.1), False, id="one peak"
        ),
        pytest.param(little_used(waiting=lambda t: float(t == 20)), False, id="somebody waited"),
        pytest.param(little_used(waiting=lambda t: float(t == 14)), True, id="long ago"),
        pytest.param(little_used(sleeping=True), False, id="asleep"),
    ],
)
def test_over_reserved(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(over_reserved.RULE, snapshots, flags=FLAGS) == ("info" if holds else None)


@pytest.mark.parametrize(
    ("seconds", "finished", "expected"),
    [
        (30, 499.0, "low"),
        (30, 500.0, "medium"),
        (290, 0.0, "low"),
        (300, 0.0, "medium"),
        (890, 500.0, "medium"),
        (900, 0.0, "high"),
    ],
)
def test_confidence_grows_with_what_was_watched(
    seconds: int, finished: float, expected: str
) -> None:
    moment = little_used(seconds, every=10.0, finished_total=lambda t: finished if t else 0.0)
    flags = {**FLAGS, "max_model_len": "1024"}
    verdict = only(over_reserved.RULE, moment, flags=flags, start=LOG)
    assert verdict.confidence == expected
    # 1.5 x 0.1 x 40 GiB stay of 40; 34 of 80 GiB are given back: 0.9 - 0.425, rounded up.
    assert figure(verdict, "gpu_memory_utilization_target") == 0.48
    if expected == "low":
        assert advised(verdict) == {"none": None}
    else:
        assert advised(verdict) == {"--gpu-memory-utilization": "0.48", "--max-num-seqs": None}
    assert avoided(verdict) == {"--block-size", "--enforce-eager"}


def watched(start: Start | None = LOG, *, flags: dict[str, str] = FLAGS, **fields: Any) -> Any:
    moment = little_used(300, every=10.0, **fields)
    return only(over_reserved.RULE, moment, flags=flags, start=start)


@pytest.mark.parametrize(
    ("usage", "longest", "weights", "to"),
    [
        # 40 GiB hold 16,016 tokens, so one request of 4,096 needs 10.23 GiB.
        pytest.param(0.2, "4096", 1, "0.55", id="1.5 x peak: 12 GiB"),
        pytest.param(0.01, "4096", 1, "0.53", id="one full-length request"),
        pytest.param(0.01, "16016", 1, None, id="one request fills it"),
        pytest.param(0.01, "160", 41, "0.54", id="not below weights, first load and margin"),
        pytest.param(0.01, "160", 75, None, id="nothing to give back"),
    ],
)
def test_how_far_down(usage: float, longest: str, weights: int, to: str | None) -> None:
    log = replace(LOG, weights_bytes_per_rank=weights * GIB)
    verdict = watched(log, flags={**FLAGS, "max_model_len": longest}, kv_usage_ratio=usage)
    assert advised(verdict).get("--gpu-memory-utilization") == to


def test_without_the_size_shares_only() -> None:
    verdict = watched(None)
    assert verdict.missing == ("kv_cache_bytes (log)",)
    assert figure(verdict, "gpu_memory_utilization_target") is None
    assert advised(verdict) == {"--max-num-seqs": None}


def test_room_is_given_back_by_the_flag_in_force() -> None:
    size = str(40 * GIB)
    labels = {"kv_cache_memory_bytes": size}
    cache = replace(CACHE, kv_cache_memory_bytes=40 * GIB, labels=labels)
    verdict = watched(cache=cache)
    assert "--gpu-memory-utilization" not in advised(verdict)
    assert figure(verdict, "gpu_memory_utilization_target") is None
    # One request of 4,096 of 16,016 tokens.
    assert int(advised(verdict)["--kv-cache-memory-bytes"] or 0) == pytest.approx(
        40 * GIB * 4096 / 16_016, abs=1
    )
    fixed = replace(
        CACHE, num_gpu_blocks_override=1_001, labels={"num_gpu_blocks_override": "1001"}
    )
    assert advised(watched(cache=fixed)) == {"--max-num-seqs": None}
