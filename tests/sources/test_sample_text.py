"""A line as a sample, held against the Prometheus client's own parser."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import parse_labels, text_string_to_metric_families

from sidecar.sources.sample_text import MAX_LABEL_CHARACTERS, number, parse_sample, whole

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=20)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@given(
    st.dictionaries(NAMES, TEXTS, max_size=5),
    st.floats(allow_nan=False),
    st.sampled_from(["", ",", " , "]),
    st.sampled_from(["", " 1700000000000"]),
)
def test_labels_and_value_as_by_the_book(
    labels: dict[str, str], value: float, end: str, timestamp: str
) -> None:
    raw = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    line = f"vllm:x{{{raw}{end if raw else ''}}} {value!r}{timestamp}"
    sample = parse_sample(line)
    assert sample is not None
    found, read = sample
    assert dict(found.values) == labels
    assert read == value
    if not end.strip():
        assert dict(found.values) == parse_labels(raw)
        ((family,),) = [[each.samples[0] for each in text_string_to_metric_families(line + "\n")]]
        assert family.value == value


@pytest.mark.parametrize(
    "line",
    [
        'x{a="1",a="2"} 1',
        'x{a="1" b="2"} 1',
        'x{,a="1"} 1',
        'x{a="1",,b="2"} 1',
        "x{a='1'} 1",
        'x{1a="1"} 1',
        'x{a="1"}1_0',
        'x{a="1"} ٣',
        "x ٣",
        "x 1 2 3",
    ],
)
def test_what_is_no_sample(line: str) -> None:
    assert parse_sample(line) is None


@pytest.mark.parametrize(
    "line",
    [
        'x{a="' + "y" * 7_000_000 + '"} 1',
        "x{" + 'a="b",' * 1_000_000 + "} 1",
        "x{" + '"' * (MAX_LABEL_CHARACTERS - 10) + "} 1",
        "x{" + 'a="' * (MAX_LABEL_CHARACTERS // 4) + "} 1",
        "x{" + '\\"' * (MAX_LABEL_CHARACTERS // 3) + "} 1",
        "x{" + "}" * (MAX_LABEL_CHARACTERS - 10) + " 1",
        "x" + " " * MAX_LABEL_CHARACTERS + "{",
    ],
)
def test_monstrous_lines_are_refused_at_once(line: str) -> None:
    began = time.process_time()
    assert parse_sample(line) is None
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "meant", "count"),
    [
        ("16", 16.0, 16),
        ("0.92", 0.92, None),
        ("None", None, None),
        ("True", None, None),
        ("", None, None),
        (None, None, None),
        ("inf", None, None),
        ("1e400", None, None),
        ("0", 0.0, None),
        ("-3", -3.0, None),
    ],
)
def test_settings_in_labels(text: str | None, meant: float | None, count: int | None) -> None:
    assert number(text) == meant
    assert whole(text) == count
