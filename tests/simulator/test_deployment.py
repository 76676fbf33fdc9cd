from __future__ import annotations

import pytest

from sidecar.simulator.deployment import GIB, Deployment, StepCost


def test_the_pool_is_what_the_flags_leave() -> None:
    deployment = Deployment()
    spent = deployment.weights_bytes + deployment.activation_peak_bytes + deployment.context_bytes
    allowed = 0.33 * (deployment.device_total_bytes - deployment.device_reserved_bytes)
    left_over = allowed - spent - deployment.kv_cache_bytes
    assert 0 <= left_over < deployment.bytes_per_block
    assert deployment.bytes_per_block == 2 * 1024**2
    assert deployment.kv_cache_size_tokens == pytest.approx(80_000, rel=0.01)
    assert deployment.kv_cache_bytes == pytest.approx(9.8 * GIB, rel=0.01)


def test_more_utilisation_is_more_blocks_and_nothing_else() -> None:
    small, large = Deployment(), Deployment(gpu_memory_utilization=0.9)
    assert large.num_gpu_blocks > 4 * small.num_gpu_blocks
    assert large.weights_bytes == small.weights_bytes


def test_the_arguments_name_the_flags_in_force() -> None:
    arguments = Deployment(max_num_seqs=7).launch_arguments
    assert arguments[arguments.index("--max-num-seqs") + 1] == "7"


@pytest.mark.parametrize(
    ("decoded_tokens", "prefilled_tokens", "milliseconds"),
    [(0, 0, 8.0), (50, 0, 10.5), (120, 0, 14.0), (0, 8192, 253.76), (40, 1000, 40.0)],
)
def test_step_cost(decoded_tokens: int, prefilled_tokens: int, milliseconds: float) -> None:
    seconds = StepCost().seconds(decoded_tokens, prefilled_tokens)
    assert seconds == pytest.approx(milliseconds / 1000)
