"""Patience: how long a condition must hold, how a verdict lingers, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from synthetic import engine, snapshot

from sidecar.model import Advice, EngineReading, Scope, Severity, Verdict
from sidecar.verdicts.keeper import CHANGES_KEPT, Keeper, sort_by_gravity
from sidecar.verdicts.rule import AT_ONCE, SHORT, Hold, Rule
from sidecar.verdicts.situation import Situation

from .moments import ENGINE, situation

Condition = Callable[[float], Severity | None]


def trouble(
    condition: Condition,
    *,
    hold: Hold = SHORT,
    linger: float = 15.0,
    scope: Scope = ENGINE,
    code: str = "trouble",
) -> Rule:
    """A rule that is true when its condition says so, with that severity."""

    def judge(moment: Situation) -> Iterable[Verdict]:
        severity = condition(moment.at)
        if severity is not None:
            yield Verdict(code, severity, "high", f"at {moment.at:g}", scope)

    return Rule(code, ("info", "warning", "critical"), judge, hold, linger)


def moment(at: float, *readings: EngineReading, version: str = "0.25.0") -> Situation:
    return situation([snapshot(at, *(readings or (engine(),)), version=version)])


def holding(
    rule: Rule, times: Iterable[float], *, instant: bool = False
) -> dict[float, str | None]:
    """What severity held at each of these polls."""
    keeper = Keeper([rule], instant=instant)
    found: dict[float, str | None] = {}
    for at in times:
        verdicts = keeper.judge(moment(at))
        assert len(verdicts) <= 1
        found[at] = verdicts[0].severity if verdicts else None
    return found


def from_to(first: float, last: float, severity: Severity = "warning") -> Condition:
    return lambda at: severity if first <= at < last else None


def first_held(found: dict[float, str | None]) -> float | None:
    return next((at for at, severity in found.items() if severity is not None), None)


def every(step: float, last: float) -> list[float]:
    return [step * index for index in range(int(last / step) + 1)]


@pytest.mark.parametrize(
    ("condition", "hold", "step", "expected"),
    [
        # A poll answers for the time since the poll before it.
        pytest.param(from_to(5, 99), SHORT, 1.0, 12.0, id="8 of 10 s, a poll a second"),
        pytest.param(from_to(5, 99), SHORT, 10.0, 10.0, id="8 of 10 s, a poll each 10 s"),
        pytest.param(from_to(5, 99), SHORT, 4.0, 12.0, id="8 of 10 s, a poll each 4 s"),
        pytest.param(from_to(5, 12), SHORT, 1.0, None, id="7 s"),
        pytest.param(from_to(5, 13), SHORT, 1.0, 12.0, id="8 s"),
        pytest.param(
            lambda at: None if at % 5 == 0 else "warning", SHORT, 1.0, 9.0, id="every fifth not"
        ),
        pytest.param(
            lambda at: None if at % 3 == 0 else "warning", SHORT, 1.0, None, id="every third not"
        ),
        pytest.param(from_to(5, 99), AT_ONCE, 1.0, 5.0, id="at once"),
        pytest.param(from_to(0, 99), SHORT, 1.0, 8.0, id="the first poll answers for no time"),
    ],
)
def test_hold(condition: Condition, hold: Hold, step: float, expected: float | None) -> None:
    assert first_held(holding(trouble(condition, hold=hold), every(step, 60))) == expected


def test_a_gap_speaks_for_half_a_minute_at_most() -> None:
    rule = trouble(from_to(100, 999), hold=Hold(31.0, 60.0))
    assert first_held(holding(rule, [0.0, 100.0, 101.0])) == 101.0


def test_a_single_page_is_judged_by_itself() -> None:
    rule = trouble(from_to(0, 99))
    assert holding(rule, [0.0]) == {0.0: None}
    assert holding(rule, [0.0], instant=True) == {0.0: "warning"}


@pytest.mark.parametrize(
    ("linger", "last"),
    [pytest.param(15.0, 43.0, id="trouble"), pytest.param(0.0, 29.0, id="a state")],
)
def test_linger(linger: float, last: float) -> None:
    """Last true at 29 s."""
    found = holding(trouble(from_to(5, 30), linger=linger), every(1.0, 60))
    assert max(at for at, severity in found.items() if severity) == last


def test_a_lull_shorter_than_the_lingering_is_no_end() -> None:
    keeper = Keeper([trouble(lambda at: None if 30 <= at < 44 else "warning")])
    for at in every(1.0, 60):
        keeper.judge(moment(at))
    assert [(change.at, change.began) for change in keeper.changes] == [(8.0, True)]


def test_it_holds_since_it_was_first_said() -> None:
    keeper = Keeper([trouble(from_to(5, 30))])
    since = {verdict.since for at in every(1.0, 43) for verdict in keeper.judge(moment(at))}
    assert since == {12.0}


def test_nothing_lingers_of_an_engine_that_is_gone() -> None:
    keeper = Keeper([trouble(from_to(0, 20)), trouble(from_to(0, 20), scope=Scope(), code="host")])
    for at in every(1.0, 20):
        keeper.judge(moment(at))
    failed = situation([snapshot(21, failure="refused")])
    assert [verdict.code for verdict in keeper.judge(failed)] == ["host"]
    assert (keeper.changes[-1].at, keeper.changes[-1].began) == (21.0, False)


def test_of_two_engines_the_one_that_stays_lingers() -> None:
    rules = [trouble(from_to(0, 20), scope=Scope("m", name)) for name in ("0", "1")]
    keeper = Keeper([trouble_of_both(rules)])
    both = (engine(), engine(engine="1"))
    for at in every(1.0, 20):
        keeper.judge(moment(at, *both))
    assert [v.scope.engine for v in keeper.judge(moment(21, engine()))] == ["0"]


def trouble_of_both(rules: list[Rule]) -> Rule:
    return Rule(
        "trouble", ("warning",), lambda moment: [v for rule in rules for v in rule.judge(moment)]
    )


def test_changes_are_told_once_each() -> None:
    def condition(at: float) -> Severity | None:
        if at < 5 or at >= 40:
            return None
        return "critical" if 20 <= at < 30 else "warning"

    keeper = Keeper([trouble(condition)])
    for at in every(1.0, 60):
        keeper.judge(moment(at))
    told = [(change.at, change.verdict.severity, change.began) for change in keeper.changes]
    assert told == [
        (12.0, "warning", True),
        (20.0, "critical", True),
        (30.0, "warning", True),
        (54.0, "warning", False),
    ]
    assert keeper.changes[-1].verdict.until == 54.0


def test_only_the_newest_changes_are_kept() -> None:
    keeper = Keeper([trouble(lambda at: "info" if at % 2 else None, hold=AT_ONCE, linger=0.0)])
    for at in every(1.0, 3 * CHANGES_KEPT):
        keeper.judge(moment(at))
    assert len(keeper.changes) == CHANGES_KEPT
    assert keeper.changes[-1].at == 3 * CHANGES_KEPT


def test_gravest_first_then_surest_then_as_they_came() -> None:
    def verdict(code: str, severity: Severity, confidence: str) -> Verdict:
        return Verdict(code, severity, confidence, "")  # type: ignore[arg-type]

    given = [
        verdict("a", "info", "high"),
        verdict("b", "warning", "low"),
        verdict("c", "critical", "low"),
        verdict("d", "warning", "high"),
        verdict("e", "info", "high"),
        verdict("f", "critical", "medium"),
    ]
    assert [v.code for v in sort_by_gravity(given)] == ["f", "c", "d", "b", "a", "e"]


@pytest.mark.parametrize(
    ("version", "advised"),
    [("0.23.0", ["--max-num-seqs"]), ("0.24.0", ["--watermark", "--max-num-seqs"])],
)
def test_a_flag_that_the_release_lacks_is_not_passed_on(version: str, advised: list[str]) -> None:
    advice = tuple(Advice(flag, "1", "", "") for flag in ("--watermark", "--max-num-seqs"))

    def judge(_: Situation) -> Iterable[Verdict]:
        yield Verdict("trouble", "info", "high", "", advice=advice)

    keeper = Keeper([Rule("trouble", ("info",), judge, AT_ONCE)])
    (verdict,) = keeper.judge(moment(0, version=version))
    assert [item.flag for item in verdict.advice] == advised
