"""Alerts on what happens to requests of a healthy server: preempted, waiting, given up."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.metric_table import table
from sidecar.rule_check.promql import parse
from sidecar.rule_check.shapes import Comparison, Rate, comparisons, rate_of
from sidecar.rule_check.text import render, render_duration, render_number
from sidecar.rule_check.tree import Aggregate, Binary, Matcher, Node, Selector

_SPARE_PREEMPTIONS = 0.1
_BEARABLE_WAIT = 10
_ERRORS_SINCE = (0, 32, 0)


def preemptions(context: Context, found: Comparison, rate: Rate) -> Iterator[Fault]:
    if has_condition(context, found.node):
        return
    seconds = rate.window / 1000 if rate.function == "increase" else 1
    severity: Severity = "error" if found.number / max(seconds, 1) <= 1 else "warning"
    message = (
        "A healthy server preempts a few of its requests, the more the busier it is: what counts "
        "is how many there are for each request that finishes."
    )
    window = render_duration(max(rate.window, context.window))
    braces, prefix = braces_of(rate.selector.matchers), prefix_of(context, rate.selector)
    above = f"rate({prefix}num_preemptions_total{braces}[{window}])"
    below = f"rate({prefix}request_success_total{braces}[{window}])"
    if rate.outer is None:
        below = f"sum without (finished_reason) ({below})"
    else:
        labels = ", ".join(rate.outer.labels)
        above = f"sum {rate.outer.keyword or 'by'} ({labels}) ({above})"
        more = f"{labels}, finished_reason" if labels else "finished_reason"
        labels = more if rate.outer.keyword == "without" else labels
        below = f"sum {rate.outer.keyword or 'by'} ({labels}) ({below})"
    relative = parse(f"{above} / ({below} > 0) > {_SPARE_PREEMPTIONS}")
    yield Fault(Code.PREEMPTION_ALARM, severity, message, context.mend(found.node, relative))


def queue(
    context: Context, found: Comparison, selector: Selector, outer: Aggregate | None
) -> Iterator[Fault]:
    if has_condition(context, found.node):
        return
    message = (
        "A server with a batch of work always has requests waiting; how long they wait is what "
        f"their senders notice. {_BEARABLE_WAIT} s here: put what you can bear."
    )
    if not table()["request_queue_time_seconds"].exists(context.release):
        reason = "this release does not say how long requests wait"
        yield Fault(Code.QUEUE_ALARM, "error", message, None, reason)
        return
    labels = ["le"]
    if outer is None:
        labels += ["job", "instance", "model_name"]
    elif outer.keyword == "by":
        labels += outer.labels
    grouping = f"by ({', '.join(labels)})"
    if outer is not None and outer.keyword == "without":
        grouping = f"without ({', '.join(outer.labels)})"
    name = f"{prefix_of(context, selector)}request_queue_time_seconds_bucket"
    buckets = f"{name}{braces_of(selector.matchers)}"
    quantile = f"histogram_quantile(0.95, sum {grouping} (rate({buckets}[5m])))"
    waits = parse(f"{quantile} > {_BEARABLE_WAIT}")
    yield Fault(Code.QUEUE_ALARM, "error", message, context.mend(found.node, waits))


def aborts(context: Context) -> Iterator[Fault]:
    for selector, use in context.uses:
        if not use.stem.startswith("request_success"):
            continue
        chosen = [one for one in selector.matchers if one.label == "finished_reason"]
        if not any(one.operator in ("=", "=~") and "abort" in one.value for one in chosen):
            continue
        message = (
            "`abort` counts requests that were given up from outside, not failures of the server, "
            "and a rate of them says nothing without the requests there were."
        )
        reason = (
            "no series of this release counts failures; from 0.8.3 on http_requests_total has "
            "the answers by status"
        )
        mended = _errors(context, selector, chosen) if context.release >= _ERRORS_SINCE else None
        yield Fault(Code.ABORT_AS_FAILURE, "error", message, mended, reason)


def _errors(context: Context, selector: Selector, chosen: list[Matcher]) -> Node | None:
    """Errors as a share of what finished, where it is one rate against one number."""
    for found in comparisons(context):
        rate = rate_of(context, found.value)
        if rate is None or rate.selector is not selector:
            continue
        others = [one for one in selector.matchers if one not in chosen]
        window = render_duration(rate.window)
        grouping = "by ()" if rate.outer is not None else "without (finished_reason)"
        if rate.outer is not None and rate.outer.keyword:
            kept = [one for one in rate.outer.labels if one != "finished_reason"]
            added = ["finished_reason"] if rate.outer.keyword == "without" else []
            grouping = f"{rate.outer.keyword} ({', '.join([*kept, *added])})"
        name = f"{prefix_of(context, selector)}request_success_total"
        failed = [*others, Matcher("finished_reason", "=", "error")]
        above, below = (
            f"sum {grouping} (rate({name}{braces_of(matchers)}[{window}]))"
            for matchers in (failed, others)
        )
        limit = render_number(found.number if 0 < found.number < 1 else 0.01)
        share = parse(f"{above} / ({below} > 0) {found.operator} {limit}")
        return context.mend(found.node, share)
    return None


def has_condition(context: Context, node: Node) -> bool:
    """Whether something else must hold, too."""
    return any(
        isinstance(parent, Binary) and parent.operator in ("and", "unless", "*")
        for parent, _ in context.ancestors(node)
    )


def prefix_of(context: Context, selector: Selector) -> str:
    use = context.use(selector)
    return "vllm:" if use is None else use.right_prefix


def braces_of(matchers: list[Matcher] | tuple[Matcher, ...]) -> str:
    return render(Selector(None, tuple(matchers))) if matchers else ""
