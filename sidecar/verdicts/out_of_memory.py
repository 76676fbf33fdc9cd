"""PyTorch ran out of memory: who held it, what was asked for, and whether fragmentation is to
blame.

PyTorch prints a hint about `expandable_segments` whatever the figures are. It helps only where a
notable share of the card is reserved and unallocated; in the public reports that were collected
it was 0.04 to 1.6 %.
"""

from __future__ import annotations

from sidecar.model import Verdict
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.out_of_memory_figures import foreign_bytes
from sidecar.verdicts.out_of_memory_serving import (
    allocator_slack,
    in_disguise,
    out_of_memory_at_run_time,
    single_allocation,
)
from sidecar.verdicts.out_of_memory_starting import (
    activation_peak,
    graph_memory,
    not_enough_free,
    weights_too_big,
)


def judge_out_of_memory(case: FailedStart) -> Verdict:
    """The kind of trouble behind an out-of-memory error, by its figures and its moment."""
    failure, message, limits = case.failure, case.message, case.thresholds
    if failure.kind == "oom_in_disguise":
        return in_disguise(case)
    if message is not None and message.total_bytes is not None:
        tried, total = message.tried_bytes or 0, message.total_bytes
        if tried >= limits.single_allocation_ratio * total:
            return single_allocation(case, message)
        if (message.reserved_unallocated_bytes or 0) >= limits.allocator_slack_ratio * total:
            return allocator_slack(case, message)
    if failure.moment == "serving" or (failure.moment is None and case.start.started):
        return out_of_memory_at_run_time(case)
    if failure.kind == "sampler_warmup_oom" or failure.moment == "sampler_warmup":
        return activation_peak(case)
    if foreign_bytes(message) >= limits.neighbour_bytes:
        return not_enough_free(case)
    if failure.moment == "graph_capture":
        return graph_memory(case)
    if failure.moment == "profiling":
        return activation_peak(case)
    if failure.kind == "load_model_oom" or failure.moment in (None, "loading"):
        return weights_too_big(case)
    return out_of_memory_at_run_time(case)
