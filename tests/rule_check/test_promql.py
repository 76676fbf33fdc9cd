"""Expressions to trees and back, with and without Grafana's variables."""

import pytest

from sidecar.rule_check.macros import DASHBOARD, read
from sidecar.rule_check.promql import ExpressionError, TooLargeError, parse
from sidecar.rule_check.text import render
from sidecar.rule_check.tree import Call, Matching, Range, Selector, Subquery, exchange, walk


@pytest.mark.parametrize(
    "text",
    [
        'sum by (le) (rate(a:b_bucket{x="1",y=~"a|b"}[5m] offset 1m)) > bool 0.5',
        "a / on (x) group_left (y) b",
        "a / on (x) group_left () (b > 0)",
        "a / ignoring (x) group_right () b",
        "(a + b) * c",
        "a - (b - c)",
        "2 ^ 3 ^ 2",
        "(2 ^ 3) ^ 2",
        "(-a) ^ 2",
        "-a ^ 2",
        "max_over_time(rate(a[5m])[1h:1m] offset 5m)",
        "(a / b)[10m:]",
        "a @ start() offset -5m",
        "a @ end()",
        "topk by (x) (3, a)",
        'count_values("v", a)',
        'label_replace(a, "x", "$1", "y", "(.*)")',
        '{__name__=~"a.*"}',
        'a{x="1" or y="2"}',
        "a and on () b unless c or d",
        "a == bool b",
        "sum without () (a)",
        "time() - a",
        "absent(a)",
        "rate(a[1h30m])",
        "a > -1",
        "NaN",
        'a{x="\\"\\\\\\n"}',
        "a + fill_left (0) b",
    ],
)
def test_text_survives(text: str) -> None:
    assert render(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "rate(vllm:prompt_tokens_total[$__rate_interval])",
        "rate(vllm:prompt_tokens_total[${window}])",
        "rate(vllm:prompt_tokens_total[[[window]]])",
        "max_over_time(vllm:num_requests_running[$__range:$__interval])",
        "histogram_quantile($quantile, sum by (le) (rate(a_bucket[5m])))",
        "sum by ($group) (vllm:num_requests_running)",
        'vllm:num_requests_running{model_name=~"$model",job=~"[[job]]"}',
        "rate(vllm:${what:raw}_total[5m]) > ${limit}",
        "topk($n, sum by ([[label]]) (a))",
        "a offset $ago",
        "increase(a[$interval]) * 60 / $__range_s",
    ],
)
def test_variables_survive(text: str) -> None:
    reading = read(text, DASHBOARD)
    assert reading.text(reading.tree) == text


@pytest.mark.parametrize("text", ["", "  ", "a b", "rate(a)", "sum(", "a[5m] > 1", "{}", "\ud800"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 60_000 + "1" + ")" * 60_000,
        "(" * 5000 + "1" + ")" * 5000,
        "-" * 5000 + "1",
        "+".join(["a"] * 5000),
        " or ".join(["a"] * 5000),
        "abs(" * 4000 + "a" + ")" * 4000,
        "a[5m:]" + "[5m:]" * 4000,
    ],
)
def test_what_would_overflow_the_parser_never_reaches_it(text: str) -> None:
    with pytest.raises(TooLargeError):
        parse(text)


def test_a_window_over_more_than_a_metric_becomes_a_subquery() -> None:
    tree = parse("avg_over_time(a[5m])")
    selector = next(node for node in walk(tree) if isinstance(node, Selector))
    changed = exchange(tree, selector, Call("rate", (Range(Selector("b"), 60_000),)))
    assert render(changed) == "avg_over_time(rate(b[1m])[5m:])"
    assert any(isinstance(node, Subquery) for node in walk(changed))


def test_an_unchanged_tree_stays_the_same_object() -> None:
    tree = parse("sum(rate(a[5m])) / (b > 0)")
    assert exchange(tree, Selector("elsewhere"), Selector("b")) is tree


def test_matching_without_words_is_nothing() -> None:
    assert Matching().keyword == ""
