"""Verdicts as a metric: one 0/1 series for each code and severity that may be said."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.history import History
from sidecar.model import Declaration, Sample, Verdict
from sidecar.verdicts import RULES
from sidecar.verdicts.start import SEVERITIES

VERDICT = Declaration(
    "verdict",
    "1 while the verdict holds with this severity, else 0. `model_name` and `engine` are empty "
    "for verdicts about the server or a GPU, `gpu` for all others.",
    labels=("code", "severity", "model_name", "engine", "gpu"),
)
_STEADY = ("healthy", "idle")


def verdict_samples(history: History, verdicts: Iterable[Verdict]) -> Iterable[Sample]:
    """All series that exist at this moment: those of engines and GPUs only while they are seen."""
    held = {(v.code, v.severity, v.scope.model_name, v.scope.engine, v.scope.gpu) for v in verdicts}
    engines = [engine.reading.key for engine in history.engines if engine.reading is not None]
    devices = history.memory.devices.values() if history.memory is not None else ()
    gpus = sorted({str(d.reading.index) for d in devices if d.reading is not None})
    series: dict[tuple[str, ...], None] = {}
    for rule in RULES:
        for severity in rule.severities:
            if rule.level == "engine":
                series.update({(rule.code, severity, *key, ""): None for key in engines})
            elif rule.level == "gpu":
                series.update({(rule.code, severity, "", "", gpu): None for gpu in gpus})
            else:
                series[rule.code, severity, "", "", ""] = None
    series.update({(code, "info", *key, ""): None for code in _STEADY for key in engines})
    if history.start is not None:
        for code, severities in SEVERITIES.items():
            series.update({(code, severity, "", "", ""): None for severity in severities})
    for labels in (*series, *sorted(held - series.keys())):
        yield Sample(VERDICT, labels, float(labels in held))
