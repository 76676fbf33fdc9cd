"""What the committed alert rules say about a recording, evaluated by Prometheus' own promtool.

promtool evaluates rules over series written into a test file, with their `for` and
`keep_firing_for`. It says what it got only where that differs from what was expected; so the test
expects nothing at all, and the difference is the answer.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from recorded_series import SCRAPE_SECONDS, Series, samples, scrapes, written

RULES = sorted((Path(__file__).resolve().parent.parent / "deploy/prometheus/rules").glob("*.yml"))
EVALUATION_SECONDS = 15
AFTERWARDS_SECONDS = 60

_EXPRESSION = 'ALERTS{alertname!="VllmSidecarWatchdog"}'
_READ_BY_RULES = set(
    re.findall(r"\b(?:vllm_sidecar_\w+|up)\b", "".join(path.read_text("utf-8") for path in RULES))
)
_TIME = re.compile(r"time: ((?:\d+[hms])+),")
_GOT = re.compile(r"(?:ALERTS)?\{([^}]*)\}")

Alert = tuple[str, str]
"""Name and severity."""


def alerts(name: str, folder: Path, *, slower: float = 1.0) -> dict[int, dict[Alert, str]]:
    """The state of each alert that was pending or firing, by seconds since the first poll."""
    rows: dict[Series, list[str]] = {}
    count = 0
    for due, frame in scrapes(name, slower=slower):
        count = due // SCRAPE_SECONDS + 1
        for series, value in samples(frame, name):
            if series[0] not in _READ_BY_RULES:
                continue
            if series[0].endswith("_timestamp_seconds"):
                value -= frame.at - due
            row = rows.setdefault(series, [])
            row.extend(["stale" if row else "_"] * (count - 1 - len(row)))
            row.append(repr(value))
    until = (count - 1) * SCRAPE_SECONDS
    test = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{EVALUATION_SECONDS}s",
        "tests": [
            {
                "interval": f"{SCRAPE_SECONDS}s",
                "input_series": [
                    {
                        "series": written(series),
                        "values": " ".join([*row, *["stale"] * (count - len(row))]),
                    }
                    for series, row in rows.items()
                ],
                "promql_expr_test": [
                    {"expr": _EXPRESSION, "eval_time": f"{at}s", "exp_samples": []}
                    for at in range(0, until + 1, EVALUATION_SECONDS)
                ],
            }
        ],
    }
    file = folder / f"{name}.yml"
    file.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "SUCCESS" in said or "got:" in said, said
    return dict(_differences(said))


def _differences(said: str) -> Iterator[tuple[int, dict[Alert, str]]]:
    for part in said.split("expr: ")[1:]:
        time = _TIME.search(part)
        assert time is not None, part
        found: dict[Alert, str] = {}
        for inside in _GOT.findall(part.partition("got:")[2]):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', inside))
            key = (labels["alertname"], labels["severity"])
            if found.get(key) != "firing":
                found[key] = labels["alertstate"]
        yield _seconds(time[1]), found


def _seconds(duration: str) -> int:
    return sum(
        int(number) * {"h": 3600, "m": 60, "s": 1}[unit]
        for number, unit in re.findall(r"(\d+)([hms])", duration)
    )
