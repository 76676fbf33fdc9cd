"""The page about verdicts names every code once, with the severities and thresholds of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.settings import PREFIX, Thresholds
from sidecar.verdicts import RULES, start
from sidecar.verdicts.rule import SHORT, TROUBLE_LINGERS_SECONDS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "verdicts.md").read_text("utf-8")
SETTING = f"{PREFIX}THRESHOLDS__"
SECTIONS = ("States", "While serving", "At start-up")
SEVERITIES = {
    **{rule.code: rule.severities for rule in RULES},
    **dict.fromkeys(("healthy", "idle"), ("info",)),
    **start.SEVERITIES,
}
ROWS = [
    (what, float(value), setting)
    for what, value, setting in re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \| `(\w+)` \|$", PAGE, re.MULTILINE
    )
]


def section(title: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def headings(title: str) -> list[str]:
    return re.findall(r"^### (.+)$", section(title), re.MULTILINE)


def test_every_code_has_its_heading_once_and_no_heading_is_made_up() -> None:
    named = [code for title in SECTIONS for code in headings(title)]
    assert sorted(named) == sorted(SEVERITIES)


def test_codes_of_a_log_stand_together() -> None:
    assert set(headings("At start-up")) == set(start.SEVERITIES)


@pytest.mark.parametrize("code", SEVERITIES)
def test_severities_are_those_of_the_rule(code: str) -> None:
    found = re.search(
        rf"^### {code}\n\nSeverity: ([a-z, ]+)\.\n\n(.+?)(?=^##|\Z)", PAGE, re.M | re.S
    )
    assert found is not None
    assert tuple(found[1].split(", ")) == SEVERITIES[code]
    assert len(found[2]) > 40


def test_the_table_of_thresholds_names_each_once() -> None:
    assert len(ROWS) == section("Thresholds").count("\n| ") - 1
    assert len(ROWS) == len({what for what, _, _ in ROWS})
    assert len(ROWS) == len({setting for _, _, setting in ROWS})


@pytest.mark.parametrize(("what", "value", "setting"), ROWS, ids=[row[0] for row in ROWS])
def test_thresholds_are_those_of_the_code(what: str, value: float, setting: str) -> None:
    assert value == getattr(Thresholds(), setting.removeprefix(SETTING).lower())


def test_the_default_patience_is_as_told() -> None:
    told = re.search(r"(\d+) of the last (\d+) seconds.*?stays for (\d+)\s+seconds", PAGE, re.S)
    assert told is not None
    assert tuple(map(float, told.groups())) == (
        SHORT.seconds,
        SHORT.window_seconds,
        TROUBLE_LINGERS_SECONDS,
    )


def test_links_within_the_page_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\(#([\w-]+)\)", PAGE)) <= anchors
