"""Generates docs/compatibility.md from the release table in the code.

python tools/compatibility_page.py            writes the page
python tools/compatibility_page.py --check    exits 1 when the committed page differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from generated import ROOT, main

from sidecar.sources.page_reason import CURES
from sidecar.sources.release_table import shown_by, turning_points
from sidecar.sources.releases import Release
from sidecar.sources.sample_text import REPLICA_LABELS
from sidecar.sources.series import NEWEST, PREFIXES, SERIES, Definition, EngineKind, Series

PATH = ROOT / "docs" / "compatibility.md"

HEADER = f"""\
# Compatibility

Which release of vLLM shows what, under which name, and what the sidecar makes of it. This page is
generated from the release table in the code by `tools/compatibility_page.py`; `make documents`
writes it anew. The table was read from the sources of vLLM 0.2.3 to {".".join(map(str, NEWEST))}
(0.21.0 was not looked at); a newer release is read like the newest that is known.

## How a page is read

- **One stable name out, whatever came in.** Only exact names count. Where an old and a new name
  stand on one page (0.9.2 to 0.10.2) the new one alone is read, and none is added to the other.
- **Prefixes** are {", ".join(f"`{prefix}`" for prefix in PREFIXES)}. If a page has several, the one
  with most series is read; `vllm_sidecar_target_info` says which.
- **V0 or V1** is told by the page: V1 names its engines from 0.8.3 on, and each kind has names that
  the other never had. Where that stays open, only what both show is expected.
- **Absent, declared without samples, invalid and zero are four things.** Absent or only declared,
  though this release should have it: `vllm_sidecar_series_missing`, and the reason in
  `vllm_sidecar_metrics_page_info`. Unusable (not a number, negative, usage above 1, two series of
  one engine that disagree): `vllm_sidecar_series_invalid_total`. A series that has yet to come is
  neither: with several API servers gauges come with the first step, a V0 engine counts finished
  requests from the first one on, and Ray leaves out a counter that never moved.
- **Several servers on one page** (replicas on Ray's exporter, servers behind a router) stay apart:
  where two have an engine of the same model and number, `engine` is `NUMBER/REPLICA`, the replica
  being the first of the labels {", ".join(f"`{label}`" for label in REPLICA_LABELS)} that is there.
  Everywhere else `engine` is what vLLM gave, and `0` where a release does not name engines.
"""

DERIVED = (
    (
        "requests waiting",
        "any without the gauge",
        "the sum over `num_requests_waiting_by_reason`",
    ),
    ("requests waiting", "V0 to 0.9.0", "includes `num_requests_swapped`"),
    (
        "prefix-cache tokens",
        "V1 to 0.8.5",
        "`gpu_prefix_cache_*` counts blocks there: times the block size, which the page tells from "
        "0.8.0 on (before, only the ratio of both holds)",
    ),
    (
        "KV blocks of an engine",
        "from 0.9.0",
        "`num_gpu_blocks` is the sum over the engines of a server: divided by their number",
    ),
    ("KV blocks of an engine", "V1 0.8.0 to 0.8.5", "not known: the page says `None`"),
    (
        "usable KV blocks",
        "V1 from 0.8.3",
        "one less than stated: block 0 is a placeholder, and counts as used to 0.10.1",
    ),
    (
        "block size",
        "from 0.24.0",
        "believed only where block size times blocks is the size in tokens that the page states",
    ),
    (
        "KV usage",
        "0.9.2 to 0.11.0",
        "of several API servers' series (label `pid`) the largest: all others are stale",
    ),
)
"""What is computed from several series: the figure, the releases, and how."""

NOT_SAID = """\
## What no release says

- Preemptions before 0.4.3 (V0) and 0.8.0 (V1); finished requests before 0.4.2 (V0) and 0.7.2 (V1);
  tokens before 0.3.1.
- Prefix-cache queries and hits of V0 engines: they show a rate only, which cannot be counted over
  a window, and -1 where the cache is off.
- Why requests wait, before 0.20.0; whether the engine sleeps, before 0.11.1.
- Anything, with `--disable-log-stats`. On Ray the figures are on Ray's exporter, not on vLLM's own
  page.
- The Rust front end (`VLLM_USE_RUST_FRONTEND=1`, 0.22.0 and later) has no `cache_config_info` and
  no `engine_sleep_state`, as far as its binary tells; it was not run.
"""


def version(release: Release) -> str:
    return ".".join(map(str, release))


def span(definition: Definition) -> str:
    """From which release on, and up to which."""
    if definition.gone is None:
        text = f"from {version(definition.first)}"
    else:
        text = f"{version(definition.first)} to before {version(definition.gone)}"
    if definition.hidden is not None:
        text += f", hidden from {version(definition.hidden)}"
    return text + (", on request" if definition.appears == "asked" else "")


def names(series: Series, kind: EngineKind) -> str:
    own = [d for d in series.definitions if d.kind == kind]
    return "<br>".join(f"`{d.name}` {span(d)}" for d in own) or "never"


def series_table() -> Iterator[str]:
    rows = (
        (
            f"`{series.stable}`{'' if series.needed else ' (optional)'}",
            names(series, "V1"),
            names(series, "V0"),
        )
        for series in SERIES
    )
    yield "## Names\n"
    yield "Names stand without prefix. What is optional is not missed where it is absent.\n"
    yield from table(("read as", "V1 engines", "V0 engines"), rows)


def eras(kind: EngineKind) -> Iterator[str]:
    """What is there in each stretch of releases between which nothing changes."""
    rows: list[tuple[str, str, str, str]] = []
    before: dict[str, str] = {}
    for start in turning_points(kind):
        now = {
            f"{series.stable}/{definition.name}": definition.name
            for series in SERIES
            for definition in shown_by(series, start, kind)
        }
        if now == before:
            continue
        known = {key.partition("/")[0] for key in now}
        rows.append(
            (
                version(start),
                listed(now[key] for key in now if key not in before),
                listed(before[key] for key in before if key not in now),
                listed(
                    s.stable for s in SERIES if s.stable not in known and is_shown_later(s, kind)
                ),
            )
        )
        before = now
    last = "0.10.2" if kind == "V0" else version(NEWEST)
    ends = [f"before {row[0]}" for row in rows[1:]] + [last]
    releases = [f"{row[0]} to {end}" for row, end in zip(rows, ends, strict=True)]
    header = ("releases", "new", "gone or hidden", "not there yet, or not any more")
    yield f"## {kind} engines, release by release\n"
    yield from table(header, ((when, *row[1:]) for when, row in zip(releases, rows, strict=True)))


def is_shown_later(series: Series, kind: EngineKind) -> bool:
    """Whether some release of this kind shows it without being asked to."""
    return any(d.kind == kind and d.appears != "asked" for d in series.definitions)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in dict.fromkeys(words)) or "nothing"


def page() -> str:
    cures = [(f"`{reason}`", f"{cure[:1].upper()}{cure[1:]}.") for reason, cure in CURES.items()]
    parts = [
        HEADER,
        *series_table(),
        *eras("V1"),
        *eras("V0"),
        "## What is derived\n",
        *table(("figure", "releases", "how"), DERIVED),
        NOT_SAID,
        "## Why a page is not whole\n",
        *table(("reason", "what to do"), cures),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main(PATH, page(), "Generate the page of vLLM releases."))
