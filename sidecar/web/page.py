"""The page at `/`: the three named indicators at a glance, and where everything else is."""

from __future__ import annotations

from html import escape

from sidecar import __version__
from sidecar.model import Frame, Histogram, Sample, Verdict

_SHOWN = (
    ("preemptions_per_second", "Preemptions a second", "{:.2f}"),
    ("preemptions_per_finished_request", "Preemptions per finished request", "{:.2f}"),
    ("kv_cache_usage_ratio", "KV cache in use", "{:.1%}"),
    ("kv_cache_usage_peak_ratio", "KV cache in use, peak", "{:.1%}"),
    ("concurrency_drop_ratio", "Concurrency fell by", "{:.1%}"),
    ("kv_cache_drop_ratio", "KV cache usage fell by", "{:.1%}"),
    ("gpu_memory_drop_ratio", "GPU memory fell by", "{:.1%}"),
    ("memory_to_concurrency_drop_ratio", "Memory drop per concurrency drop", "{:.3f}"),
)
_LINKS = (
    ("/metrics", "metrics for Prometheus"),
    ("/api/v1/diagnosis", "the verdicts with their evidence and advice, as JSON"),
    ("/api/v1/snapshot", "everything that is known now, as JSON"),
    ("/-/healthy", "is this process alive"),
    ("/-/ready", "has it polled"),
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:.2rem 1rem .2rem 0;text-align:left}"
)


def render_page(frame: Frame | None) -> str:
    """Plain HTML without scripts; it asks the browser to load it again every five seconds."""
    links = "".join(f'<li><a href="{path}">{path}</a>: {text}</li>' for path, text in _LINKS)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="refresh" content="5"><title>vllm-sidecar</title>'
        f"<style>{_STYLE}</style><h1>vllm-sidecar {escape(__version__)}</h1>"
        f"{_verdicts(frame)}{_state(frame)}<ul>{links}</ul></html>"
    )


def _verdicts(frame: Frame | None) -> str:
    """What is concluded, the gravest first, each with the first thing to change."""
    if frame is None or not frame.verdicts:
        return ""
    items = "".join(
        f"<li><b>{escape(verdict.severity)}</b> {escape(verdict.code)}: "
        f"{escape(verdict.summary)}{_first_step(verdict)}</li>"
        for verdict in frame.verdicts
    )
    return f"<ul>{items}</ul>"


def _first_step(verdict: Verdict) -> str:
    if not verdict.advice:
        return ""
    step = verdict.advice[0]
    change = step.flag if step.to is None else f"{step.flag} {step.to}"
    return f"<br>First: <code>{escape(change)}</code>, {escape(step.expect)}"


def _state(frame: Frame | None) -> str:
    if frame is None:
        return "<p>No poll yet.</p>"
    failure = frame.snapshot.failure
    if failure is not None:
        return f"<p>vLLM does not answer: {escape(failure.detail or failure.reason)}</p>"
    rows = "".join(
        f"<tr><td>{escape(title)}</td><td>{escape(_where(sample))}</td>"
        f"<td>{form.format(sample.value)}</td></tr>"
        for name, title, form in _SHOWN
        for sample in frame.samples
        if sample.declaration.name == name and not isinstance(sample.value, Histogram)
    )
    if not rows:
        return "<p>vLLM answers, but its page holds no engine series.</p>"
    return f"<table><tr><th>Indicator</th><th>Of</th><th>Now</th></tr>{rows}</table>"


def _where(sample: Sample) -> str:
    return ", ".join(label for label in sample.labels if label)
