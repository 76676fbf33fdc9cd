"""PyTorch ran out of memory: who held it, what was asked for, and whether fragmentation is to
blame.

PyTorch prints a hint about `expandable_segments` whatever the figures are. It helps only where a
notable share of the card is reserved and unallocated; in the public reports that were collected
it was 0.04 to 1.6 %.
"""

from __future__ import annotations

from sidecar.model import Verdict
from sidecar.sources.releases import Release
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.start import Start
from sidecar.verdicts.out_of_memory_figures import NEIGHBOUR_BYTES, SLACK_RATIO, foreign_bytes
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

SINGLE_ALLOCATION_RATIO = 0.9


def judge_out_of_memory(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    """The kind of trouble behind an out-of-memory error, by its figures and its moment."""
    message = failure.out_of_memory
    if failure.kind == "oom_in_disguise":
        return in_disguise(start)
    if message is not None and message.total_bytes is not None:
        tried, total = message.tried_bytes or 0, message.total_bytes
        if tried >= SINGLE_ALLOCATION_RATIO * total:
            return single_allocation(message)
        if (message.reserved_unallocated_bytes or 0) >= SLACK_RATIO * total:
            return allocator_slack(start, message, release)
    if failure.moment == "serving" or (failure.moment is None and start.started):
        return out_of_memory_at_run_time(start, message)
    if failure.kind == "sampler_warmup_oom" or failure.moment == "sampler_warmup":
        return activation_peak(start, message, failure.dummy_requests)
    if foreign_bytes(message) >= NEIGHBOUR_BYTES:
        return not_enough_free(start, message)
    if failure.moment == "graph_capture":
        return graph_memory(start, message)
    if failure.moment == "profiling":
        return activation_peak(start, message, None)
    if failure.kind == "load_model_oom" or failure.moment in (None, "loading"):
        return weights_too_big(start, message)
    return out_of_memory_at_run_time(start, message)
