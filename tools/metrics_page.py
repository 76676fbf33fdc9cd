"""Generates docs/metrics.md from the declarations in the code.

python tools/metrics_page.py            writes the page
python tools/metrics_page.py --check    exits 1 when the committed page differs
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from generated import ROOT, main

from sidecar import exposition, indicators, telemetry, verdict_samples
from sidecar.exposition import NAMESPACE
from sidecar.model import Declaration

PATH = ROOT / "docs" / "metrics.md"
UPPER_CASE = {"kv": "KV", "gpu": "GPU"}

HEADER = f"""\
# Metrics

Everything that the sidecar exports on `/metrics`, by subject. This page is generated from the
declarations in the code by `tools/metrics_page.py`; `make documents` writes it anew.

## How to read it

- **Names** begin with `{NAMESPACE}` and are a public contract: renaming one is a breaking change
  and stands in the CHANGELOG. Units are base units and end the name: `_bytes`, `_seconds`,
  `_tokens`. `_ratio` is a share from 0 to 1, `_total` a counter, `_info` always 1 with its facts in
  labels.
- **Not known is absent.** A value that was not measured or cannot be computed has no series. No 0,
  NaN or -1 ever stands for it, and when a source is gone, so are its values within two polls.
- **Why it is absent** is told by `{NAMESPACE}unavailable_info`, a series for each indicator that
  could not be computed at the last poll, with a short reason. An indicator that does not apply
  (blocks held while idle, on a busy server) is simply absent, and so is everything about vLLM
  while its page cannot be read; see `{NAMESPACE}source_up`.
- **Windows** look back from the last poll and count seconds of data, so that a slow scrape misses
  nothing. Where a metric has several, they are the label `window`: `10s`, `60s` or `1h`. A rate
  needs at least 5 s of data; the first page ever seen is a baseline and no increase.
- **Counters** start at 0 when the sidecar starts, except those that repeat one of vLLM's own, which
  start again with vLLM. Use `rate()` or `increase()` on counters only: everything else that is
  called `per_second` is a rate already.
- **Labels**: `model_name` and `engine` are vLLM's own (`engine` is `0` where a release does not
  name engines); `gpu` is the index and `uuid` the lasting name of a device. Each engine and each
  device has its own series. Add up requests, tokens and bytes if you like; of ratios take the
  maximum or the average, never the sum.
- **A histogram** shows three names: `_bucket` with the label `le`, `_sum` and `_count`.
- **Thresholds** in a description are the defaults; [settings.md](settings.md) lists them all.
"""

FOOTER = """\
## The process

`process_cpu_seconds_total`, `process_resident_memory_bytes` and the other `process_` metrics of the
Prometheus client library tell what the sidecar itself uses (on Linux).
"""

Section = tuple[str, str, tuple[Declaration, ...]]


def sections() -> Iterator[Section]:
    """Title, introduction and declarations of each file that declares metrics, in their order."""
    modules = {
        id(module.SUBJECT): module
        for module in vars(indicators).values()
        if isinstance(module, ModuleType) and hasattr(module, "SUBJECT")
    }
    told: set[str] = set()
    for subject in indicators.SUBJECTS:
        module = modules[id(subject)]
        told |= {declaration.name for declaration in subject.declarations}
        yield _title(module), _introduction(module), subject.declarations
    told.add(verdict_samples.VERDICT.name)
    yield "Verdicts", _introduction(verdict_samples), (verdict_samples.VERDICT,)
    rest = tuple(each for each in exposition.DECLARATIONS if each.name not in told)
    yield "The sidecar about itself", _introduction(telemetry), rest


def _title(module: ModuleType) -> str:
    words = module.__name__.rpartition(".")[2].split("_")
    text = " ".join(UPPER_CASE.get(word, word) for word in words)
    return text[0].upper() + text[1:]


def _introduction(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "").removeprefix("The sidecar about itself: ")


def table(declarations: Iterable[Declaration]) -> Iterator[str]:
    """One line a metric."""
    yield "| metric | type | labels | what it is |"
    yield "|---|---|---|---|"
    for declaration in declarations:
        labels = ", ".join(f"`{label}`" for label in declaration.labels) or "none"
        cells = (f"`{NAMESPACE}{declaration.name}`", declaration.kind, labels, declaration.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    parts = [HEADER]
    for title, introduction, declarations in sections():
        text = introduction[:1].upper() + introduction[1:]
        parts.append("\n".join([f"## {title}", "", text, "", *table(declarations), ""]))
    return "\n".join([*parts, FOOTER])


if __name__ == "__main__":
    sys.exit(main(PATH, page(), "Generate the page of metrics."))
