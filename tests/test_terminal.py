"""How a report looks where nobody's terminal says how wide it is."""

from __future__ import annotations

import io

from sidecar.diagnosis import Report
from sidecar.model import Advice, Evidence, Verdict
from sidecar.terminal import print_report

LONG = "a word and another one, " * 12
VERDICT = Verdict(
    "kv_exhausted",
    "warning",
    "high",
    f"Summary: {LONG}",
    evidence=(Evidence("preemptions_30s", 88.0, "preemptions", 3.0),),
    advice=(Advice("--watermark", "0.3", LONG, LONG, current="0.0"),),
    since=0.0,
    until=60.0,
)


def shown(*verdicts: Verdict) -> list[str]:
    out = io.StringIO()
    print_report(Report(0.0, verdicts), out)
    return out.getvalue().splitlines()


def test_lines_have_a_bounded_width_and_no_blanks_at_their_end() -> None:
    lines = shown(VERDICT)
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line != line.rstrip()] == []


def test_text_goes_on_below_its_beginning() -> None:
    lines = shown(VERDICT)
    assert lines[0] == "WARNING  kv_exhausted  (confidence high, since 00:00:00 to 00:01:00)"
    first = next(index for index, line in enumerate(lines) if "change" in line)
    assert lines[first].startswith("         change   --watermark 0.0 -> 0.3: a word")
    assert lines[first + 1].startswith(" " * 18)
    assert lines[first + 1][18] != " "
    assert "         because  preemptions_30s 88 preemptions (against 3 preemptions)" in lines


def test_a_report_without_a_verdict_says_so() -> None:
    assert shown() == ["Nothing can be said: no good page and no log."]
