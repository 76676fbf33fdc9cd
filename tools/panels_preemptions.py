"""The row "Preemptions": how many there are, what they cost, and whether anybody waits."""

from __future__ import annotations

from alert_lines import PREEMPTED_PER_FINISHED, PREEMPTED_PER_SECOND, THROUGHPUT_LEFT
from dashboard_parts import (
    ENGINE_NAME,
    About,
    Query,
    Row,
    levels,
    lines,
    metric,
    missing,
    states,
)

PREEMPTIONS = Row(
    400,
    "Preemptions",
    (
        lines(
            About(
                401,
                "Preemptions, from the counter",
                "Rate of vLLM's own counter. None or a few is good. Above the line for minutes, "
                "with the cache at 90 % or more, is bad if tokens a second fall: more KV cache "
                "first, then --watermark (vLLM 0.24 and later), then a lower --max-num-seqs. While "
                "tokens a second hold, change nothing.",
                "reqps",
                8,
            ),
            Query(f"rate({metric('preemptions_total')}[$__rate_interval])", ENGINE_NAME),
            missing("preemptions_total"),
            thresholds=levels("green", (PREEMPTED_PER_SECOND, "orange")),
        ),
        lines(
            About(
                402,
                "Preemptions per finished request",
                "Over 5 minutes; may exceed 1. Below 0.1 is good. Above the line the alert "
                "VllmPreemptionSpike fires when the cache is full, too: raise the KV cache; from "
                "0.5 on --watermark 0.3 helps (vLLM 0.24 and later). Not available while fewer "
                "than 5 requests have finished.",
                "short",
                8,
            ),
            Query(metric("preemptions_per_finished_request"), ENGINE_NAME),
            missing("preemptions_per_finished_request"),
            thresholds=levels("green", (PREEMPTED_PER_FINISHED, "orange")),
        ),
        states(
            About(
                403,
                "Suspected, stalled, asleep",
                "Suspected: the queue looks as if requests were thrown back into it, which shows "
                "before vLLM's late counter does. Stalled: requests run and nothing has moved for "
                "30 s; a paused server looks the same. Asleep: vLLM says that it sleeps. No is "
                "good. Suspected: see the rate; stalled: see vLLM's log, then restart it.",
                "none",
                8,
            ),
            Query(metric("preemption_suspected"), ENGINE_NAME + " suspected"),
            Query(metric("engine_stalled"), ENGINE_NAME + " stalled"),
            Query(metric("engine_sleeping"), ENGINE_NAME + " asleep"),
            missing("preemption_suspected", "engine_stalled"),
            meanings=(("0", "no", "green"), ("1", "yes", "orange")),
        ),
        lines(
            About(
                404,
                "Tokens computed again",
                "Estimated tokens a second that are computed a second time after preemptions; "
                "vLLM's token counters hide them. Zero is good. Compare with tokens a second: a "
                "small share does no harm, half of it is half of the GPU's work lost, and more KV "
                "cache is worth having.",
                "short",
                8,
            ),
            Query(metric("preemption_recompute_tokens_per_second"), ENGINE_NAME),
            missing("preemption_recompute_tokens_per_second"),
            axis="tokens a second",
        ),
        lines(
            About(
                405,
                "Work amplification",
                "Tokens computed for each useful one. 1 is good; 1.3 means that a third is added "
                "by doing work twice; 2 that half of the work is lost. What to do is the same as "
                "for preemptions: more KV cache first, and nothing while tokens a second are what "
                "you need.",
                "short",
                8,
            ),
            Query(metric("work_amplification"), ENGINE_NAME),
            missing("work_amplification"),
        ),
        lines(
            About(
                406,
                "Running against waiting",
                "Requests in the batch and requests in the queue. A queue is normal for a batch "
                "job. Running that falls while waiting rises by as much, at a full cache, is "
                "preemption. A flat line of running with a queue at low KV usage is "
                "--max-num-seqs: raise it.",
                "short",
                8,
            ),
            Query(metric("requests_running"), ENGINE_NAME + ": running"),
            Query(metric("requests_waiting"), ENGINE_NAME + ": waiting"),
            Query(metric("running_plateau"), ENGINE_NAME + ": running kept at"),
            missing("requests_running", "requests_waiting"),
        ),
        lines(
            About(
                407,
                "Tokens a second against the best of the last hour",
                "Generated and prompt tokens a second, the best 10 s of the last hour, and 75 % of "
                "that. Near the best is good, and then preemptions are harmless. Below 75 % with "
                "as many requests as then and with preemptions, the alert VllmPreemptionSpike "
                "turns critical: more KV cache, or as many requests as ran at the best rate. With "
                "fewer requests a lower rate is normal; a burst of prompts may set the best.",
                "short",
                16,
            ),
            Query(
                f"{metric('generation_tokens_per_second')} + {metric('prompt_tokens_per_second')}",
                ENGINE_NAME + ": all",
            ),
            Query(metric("generation_tokens_per_second"), ENGINE_NAME + ": generated"),
            Query(metric("tokens_per_second_plateau"), ENGINE_NAME + ": best"),
            Query(
                f"{THROUGHPUT_LEFT} * {metric('tokens_per_second_plateau')}",
                ENGINE_NAME + ": 75 % of the best",
            ),
            missing(
                "generation_tokens_per_second",
                "prompt_tokens_per_second",
                "tokens_per_second_plateau",
            ),
            axis="tokens a second",
        ),
        lines(
            About(
                408,
                "Queueing time, 95th percentile",
                "How long requests that finished in the last minute had waited, for all but the "
                "slowest 5 %. Whatever your users accept is good. If it grows with the cache full, "
                "the cache is what they wait for; if it grows at low KV usage, a limit is: see "
                "running against waiting.",
                "s",
                8,
            ),
            Query(metric("queue_time_p95_seconds"), ENGINE_NAME),
            missing("queue_time_p95_seconds"),
        ),
    ),
)
