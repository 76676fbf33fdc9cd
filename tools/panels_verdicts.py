"""Panels that show verdicts: the worst now, all that hold with what to do, and when they held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboard_parts import SERVER, About, Query, Row, figures, metric, rows_of, states
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from verdict_words import WHAT_TO_DO

ANYWHERE = f'{SERVER}, model_name=~"$model_name|", engine=~"$engine|", gpu=~"$gpu|"'
"""Verdicts about a server or a GPU have no engine and those about an engine no GPU: the empty
label is always let through."""
DOCUMENT = "https://github.com/vllm-sidecar/vllm-sidecar/blob/main/docs/verdicts.md"
IDENTITY = "instance, code, model_name, engine, gpu"
SEVERITIES = (
    ("1", "info", "blue"),
    ("2", "warning", "orange"),
    ("3", "critical", "red"),
)
ENGINE_CODES = (
    "kv_exhausted", "kv_leaked", "internal_fragmentation", "seqs_capped", "token_budget_capped",
    "lora_capped", "stalled",
)  # fmt: skip
MEMORY_CODES = ("co_tenant", "orphan", "memory_growth", "headroom_low", "host_memory_low")
MEASURING_CODES = ("vllm_blind", "metrics_missing", "metrics_invalid", "gpu_unreadable")


def weighed(codes: Sequence[str] = (), *, held: bool = False) -> str:
    """1 for each info that holds, 2 for a warning, 3 for a critical verdict, 0 for all others."""
    where = ANYWHERE + (f', code=~"{"|".join(codes)}"' if codes else "")
    parts = []
    for weight, severity, _ in reversed(SEVERITIES):
        one = metric("verdict", where, severity=severity)
        one = f"({one} == 1)" if held else one
        parts.append(one if weight == "1" else f"{weight} * {one}")
    return " or ".join(parts)


def worst(
    number: int,
    title: str,
    description: str,
    width: int,
    codes: Sequence[str] = (),
    height: int = 5,
) -> dashboard.Panel:
    """The gravest of these verdicts that holds now, one figure for each server."""
    return figures(
        About(number, title, description, "none", width, height),
        Query(f"max by (job, instance) ({weighed(codes)})", "{{instance}}", instant=True),
        meanings=(
            ("0", "Nothing wrong", "green"),
            ("1", "Nothing wrong", "green"),
            ("2", "Warning", "orange"),
            ("3", "Critical", "red"),
        ),
    )


def timeline(
    number: int, title: str, description: str, height: int, codes: Sequence[str] = ()
) -> dashboard.Panel:
    """A band for each verdict that held at any time in the range."""
    where = ANYWHERE + (f', code=~"{"|".join(codes)}"' if codes else "")
    ever = f"max_over_time({metric('verdict', where)}[$__range] @ end())"
    return states(
        About(number, title, description, "none", 24, height),
        Query(
            f"max by ({IDENTITY}) ({weighed(codes)}) "
            f"and on ({IDENTITY}) max by ({IDENTITY}) ({ever}) == 1",
            "{{instance}} {{code}} {{model_name}} {{engine}} {{gpu}}",
        ),
        meanings=(("0", "no", "transparent"), *SEVERITIES),
    )


WORST = worst(
    110,
    "Verdict",
    "The gravest verdict that holds now. Nothing wrong is good: information may still hold, and is "
    "in the table beside. Warning is for today, critical for now; the table says which verdict and "
    "what to do. No data: the sidecar is not scraped.",
    4,
    height=8,
)


def said(meanings: Mapping[str, Mapping[str, str]]) -> list[dict[str, object]]:
    """Texts and colours for the values of a column of labels."""
    options = {
        value: {"index": number, **result}
        for number, (value, result) in enumerate(meanings.items())
    }
    return [{"type": "value", "options": options}]


HOLDING = rows_of(
    About(
        111,
        "What holds, and what to do",
        "Every verdict that holds now, the gravest first, with the shortest form of its advice. "
        "healthy and idle are good, and so is any other info: a fact, no fault. For a warning or "
        "critical one, vllm-sidecar diagnose and the sidecar's page give the flag, the value and "
        "the arithmetic; a code leads to its explanation. An empty table: no data.",
        "none",
        17,
        8,
    ),
    Query(
        # The column of advice is the code once more; the table puts words in its place.
        f'sort_desc(label_replace({weighed(held=True)}, "what_to_do", "$1", "code", "(.+)"))',
        instant=True,
        format=PromQueryFormat.TABLE,
    ),
    columns=("severity", "code", "what_to_do", "instance", "model_name", "engine", "gpu"),
    looks={
        "severity": {
            "mappings": said(
                {name: {"text": name, "color": color} for _, name, color in SEVERITIES}
            ),
            "custom.cellOptions": {"type": "color-text"},
            "custom.width": 90,
        },
        "code": {
            "links": [
                {
                    "title": "What it means",
                    "url": f"{DOCUMENT}#${{__value.raw}}",
                    "targetBlank": True,
                }
            ],
            "custom.width": 190,
        },
        "what_to_do": {
            "displayName": "what to do",
            "mappings": said({code: {"text": text} for code, text in WHAT_TO_DO.items()}),
            "custom.width": 360,
        },
    },
)

VERDICTS = Row(
    150,
    "Verdicts over time",
    (
        timeline(
            151,
            "Which verdicts held",
            "One band for each verdict that held at any time in this range: blue information, "
            "orange a warning, red critical, faint while it did not hold. Blue bands are fine. A "
            "short orange or red one is over; one that reaches the right edge is in the table "
            "above with what to do. A gap in all bands: the sidecar was not scraped.",
            9,
        ),
    ),
)
