"""Names that do not exist: never, not yet, no longer, not without a flag, or not in this form."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.metric_table import Metric, table
from sidecar.rule_check.metrics import Use, use_of
from sidecar.rule_check.successors import renamed, successor
from sidecar.rule_check.tree import Binary, Call, Node, Selector, walk
from sidecar.sources.releases import Release

_NO_FAILURES = (
    "vLLM counts no failures; from 0.8.3 on http_requests_total has the answers by status "
    '(status="5xx"), next to the requests of every other path'
)


def check_names(context: Context) -> Iterator[Fault]:
    for selector, use in context.uses:
        if use.part == "_created":
            yield from _created(context, selector, use)
        elif use.metric is None:
            yield from _unknown(context, selector, use)
        else:
            yield from _known(context, selector, use, use.metric)
    yield from _shadowed(context)


def _unknown(context: Context, selector: Selector, use: Use) -> Iterator[Fault]:
    counter = table().get(f"{use.stem}_total")
    if counter is not None and counter.kind == "counter":
        if use.prefix.startswith("ray_"):
            return
        message = f"{selector.name} is shown as vllm:{counter.name}: counters end in _total."
        right_name = renamed(context, selector, f"vllm:{counter.name}")
        yield Fault(Code.MISSING_TOTAL, _severity(context, selector), message, right_name)
        return
    message = f"No release of vLLM has a metric {selector.name}: this never holds any data."
    mended: Node | None = None
    reason = "nothing that vLLM exports answers this question"
    if use.meant is not None:
        name = f"{use.right_prefix}{use.meant}"
        mended = renamed(context, selector, name)
        message += f" Probably {name} is meant."
    elif "fail" in use.stem or "error" in use.stem:
        reason = _NO_FAILURES
    yield Fault(Code.UNKNOWN_METRIC, _severity(context, selector), message, mended, reason)


def _known(context: Context, selector: Selector, use: Use, metric: Metric) -> Iterator[Fault]:
    release = context.release
    if use.prefix == "vllm_":
        right = f"vllm:{use.stem}"
        message = f"vLLM's own page has no {selector.name}; its names begin with `vllm:`."
        right_name = renamed(context, selector, right)
        yield Fault(Code.WRONG_PREFIX, _severity(context, selector), message, right_name)
    if metric.kind == "histogram" and not use.part:
        yield _without_suffix(context, selector, metric)
    if _has_alternative(context, selector):
        return
    if not metric.exists(release):
        yield _absent(context, selector, use, metric)
    elif metric.is_hidden(release):
        message = (
            f"vLLM {_text(release)} shows {selector.name} only with "
            "--show-hidden-metrics-for-version, and the next release has removed it."
        )
        mended, reason = successor(context, selector, use, metric)
        yield Fault(Code.HIDDEN_METRIC, "error", message, mended, reason)
    elif metric.is_deprecated(release):
        message = f"{selector.name} is deprecated since vLLM {_text(metric.deprecated)}."
        mended, reason = successor(context, selector, use, metric)
        yield Fault(Code.DEPRECATED_METRIC, "info", message, mended, reason)
    elif metric.is_of_other_engine(release):
        message = f"At vLLM {_text(release)} only a V0 engine has {selector.name}; V1 is default."
        mended, reason = successor(context, selector, use, metric)
        yield Fault(Code.DEPRECATED_METRIC, "info", message, mended, reason)


def _absent(context: Context, selector: Selector, use: Use, metric: Metric) -> Fault:
    release = context.release
    if release < metric.first:
        message = f"{selector.name} comes with vLLM {_text(metric.first)}, after {_text(release)}."
        for older in table().values():
            if older.successor == metric.name and older.exists(release):
                name = f"{use.right_prefix}{older.name}{use.part}"
                right_name = renamed(context, selector, name)
                return Fault(Code.FUTURE_METRIC, "error", message, right_name)
        return Fault(Code.FUTURE_METRIC, "error", message, None, "that release has no such figure")
    message = f"vLLM has {selector.name} up to {_text(metric.last)}: no data at {_text(release)}."
    mended, reason = successor(context, selector, use, metric)
    return Fault(Code.REMOVED_METRIC, "error", message, mended, reason)


def _without_suffix(context: Context, selector: Selector, metric: Metric) -> Fault:
    right = f"vllm:{metric.name}"
    if metric.name == "iteration_tokens_total":
        message = f"{selector.name} is a histogram, whatever its name says; its sum counts tokens."
        right_name = renamed(context, selector, f"{right}_sum")
        return Fault(Code.HISTOGRAM_AS_COUNTER, "error", message, right_name)
    message = (
        f"{selector.name} is a histogram: there is data under _bucket, _sum and _count, and none "
        "under this name unless Prometheus converts classic histograms."
    )
    above = [node for node, _ in context.ancestors(selector)]
    part = ""
    if any(isinstance(node, Call) and node.function == "histogram_quantile" for node in above):
        part = "_bucket"
    elif context.source.role == "variable" or any(
        isinstance(node, Call) and node.function.startswith("absent") for node in above
    ):
        part = "_count"
    mended = renamed(context, selector, right + part) if part else None
    reason = "it does not say whether a quantile, a mean or a number of requests is wanted"
    return Fault(Code.HISTOGRAM_WITHOUT_SUFFIX, "error", message, mended, reason)


def _created(context: Context, selector: Selector, use: Use) -> Iterator[Fault]:
    for node, _ in context.ancestors(selector):
        if isinstance(node, Binary) and node.operator in ("-", ">", "<"):
            calls = [one.function for one in walk(node) if isinstance(one, Call)]
            if "time" in calls:
                return
        if isinstance(node, Call) and node.function in ("changes", "absent", "count_over_time"):
            return
    message = (
        f"{selector.name} is the unix time at which the series began, not a count, and it is "
        "missing where vLLM runs several API servers."
    )
    counted = use.stem.removesuffix("_created")
    kind = None if use.metric is None else use.metric.kind
    name = f"{use.right_prefix}{counted}{'_count' if kind == 'histogram' else '_total'}"
    yield Fault(Code.CREATED_TIMESTAMP, "error", message, renamed(context, selector, name))


def _shadowed(context: Context) -> Iterator[Fault]:
    use = use_of(context.source.rule) if context.source.role == "record" else None
    if use is not None and use.metric is not None and use.prefix != "vllm_":
        name = use.stem.removesuffix("_total")
        yield Fault(
            Code.SHADOWED_METRIC,
            "error",
            f"The rule records under {context.source.rule}, which is the name of vLLM's own "
            "series: both come back from every query, and sums count them twice.",
            None,
            f"the name is at fault; record, say, model_name:vllm_{name}:avg",
        )


def _severity(context: Context, selector: Selector) -> Severity:
    return "info" if _has_alternative(context, selector) else "error"


def _has_alternative(context: Context, selector: Selector) -> bool:
    """Whether an `or` next to it has a metric that exists: then it is there for other releases."""
    for node, child in context.ancestors(selector):
        if not isinstance(node, Binary) or node.operator != "or":
            continue
        other = node.right if child is node.left else node.left
        for one in walk(other):
            use = context.use(one)
            if use is not None and use.metric is not None and use.prefix != "vllm_":
                release = context.release
                if use.metric.exists(release) and not use.metric.is_hidden(release):
                    return True
    return False


def _text(release: Release | None) -> str:
    return "?" if release is None else ".".join(str(part) for part in release)
