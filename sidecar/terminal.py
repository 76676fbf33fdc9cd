"""Reports for a terminal: plain words first, then the figures they rest on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console
from rich.text import Text

from sidecar.diagnosis import Report
from sidecar.model import Advice, Evidence, Verdict
from sidecar.startlog.start import Start
from sidecar.verdicts.memory_arithmetic import gib

_STYLES = {"critical": "bold red", "warning": "yellow", "info": "green"}
_WIDTH_WHEN_PIPED = 100
_INDENT = 9
_LEAST_WIDTH = 20


def console_for(out: TextIO) -> Console:
    """Colours only where somebody looks; a pipe gets plain text of a fixed width."""
    if out.isatty():
        return Console(file=out, highlight=False)
    return Console(file=out, highlight=False, no_color=True, width=_WIDTH_WHEN_PIPED)


def print_report(report: Report, out: TextIO) -> None:
    """All verdicts, the gravest first, and what the log says of the start."""
    console = console_for(out)
    if report.start is not None:
        _print_start(console, report.start)
    if not report.verdicts:
        console.print("Nothing can be said: no good page and no log.")
    for verdict in report.verdicts:
        _print_verdict(console, verdict)


def _print_verdict(console: Console, verdict: Verdict) -> None:
    head = Text()
    head.append(f"{verdict.severity.upper():<8} ", _STYLES[verdict.severity])
    head.append(verdict.code, "bold")
    head.append(_about(verdict), "dim")
    console.print(head, soft_wrap=True)
    _print_indented(console, Text(" " * _INDENT), verdict.summary)
    if verdict.evidence:
        _item(console, "because", "; ".join(_figure(item) for item in verdict.evidence))
    for number, item in enumerate(verdict.advice, start=1):
        _item(console, f"change {number}" if len(verdict.advice) > 1 else "change", _step(item))
    for avoid in verdict.avoid:
        _item(console, "leave", f"{avoid.flag}: {avoid.why}")
    if verdict.missing:
        _item(console, "missing", ", ".join(verdict.missing))
    console.print()


def _item(console: Console, title: str, text: str) -> None:
    head = Text(" " * _INDENT)
    head.append(f"{title:<{_INDENT}}", "dim")
    _print_indented(console, head, text)


def _print_indented(console: Console, head: Text, text: str) -> None:
    """The text beside its head, and what does not fit on that line below the text's beginning."""
    width = max(_LEAST_WIDTH, console.width - len(head))
    for line in Text(text).wrap(console, width):
        line.rstrip()
        console.print(Text.assemble(head, line), soft_wrap=True)
        head = Text(" " * len(head))


def _about(verdict: Verdict) -> str:
    parts = [f"confidence {verdict.confidence}"]
    scope = verdict.scope
    if scope.engine:
        parts.append(f"engine {scope.engine} of {scope.model_name}")
    if scope.gpu:
        parts.append(f"GPU {scope.gpu}")
    if verdict.since is not None:
        until = "" if verdict.until is None else f" to {_clock(verdict.until)}"
        parts.append(f"since {_clock(verdict.since)}{until}")
    return f"  ({', '.join(parts)})"


def _clock(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%H:%M:%S")


def _step(item: Advice) -> str:
    change = item.flag
    if item.to is not None:
        change += f" {item.current} -> {item.to}" if item.current is not None else f" {item.to}"
    elif item.current is not None:
        change += f" (now {item.current})"
    return f"{change}: {item.expect}. {item.why[:1].upper()}{item.why[1:]}."


def _figure(item: Evidence) -> str:
    text = f"{item.name} {_value(item.value, item.unit)}"
    if item.threshold is not None:
        text += f" (against {_value(item.threshold, item.unit)})"
    return text


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return gib(value)
    if unit == "ratio":
        return f"{value:.3g}"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{shown} {unit}".rstrip()


def _print_start(console: Console, start: Start) -> None:
    """The figures of the start, where the log has any."""
    known = list(_start_figures(start))
    if not known:
        return
    title = f"vLLM {start.vllm_version}" if start.vllm_version else "The server"
    console.print(Text(f"{title}, as its log tells:", "bold"))
    for name, text in known:
        console.print(f"  {name:<28}{text}")
    console.print()


def _start_figures(start: Start) -> Iterable[tuple[str, str]]:
    sizes = (
        ("weights, per GPU", start.weights_bytes_per_rank),
        ("activations, per GPU", start.activation_bytes_per_rank),
        ("other than PyTorch, per GPU", start.non_torch_bytes_per_rank),
        ("CUDA graphs, per GPU", start.cuda_graph_bytes_per_rank),
        ("KV cache, per GPU", start.kv_cache_bytes_per_rank),
    )
    for name, size in sizes:
        if size is not None:
            yield name, gib(size)
    if start.capacity_tokens is not None:
        yield "KV cache", f"{start.capacity_tokens:,} tokens"
    if start.max_concurrency is not None and start.max_model_len is not None:
        yield "longest requests at once", f"{start.max_concurrency:g} of {start.max_model_len:,}"
    if start.gpu_memory_utilization is not None:
        yield "GPU memory utilisation", f"{start.gpu_memory_utilization:g}"
