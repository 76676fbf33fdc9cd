"""Check that every query of the dashboards is valid PromQL, with the program that will read it.

    python tools/check_dashboards.py

Grafana's macros and variables are replaced by what they stand for, and the queries go to promtool
as recording rules. Prints one line a dashboard; exits 1 when a query is not valid and 2 when
promtool is missing. What else is asked of a dashboard stands in `tests/test_dashboards.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DASHBOARDS = ROOT / "dashboards"
MACROS = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "1h"}
VARIABLE = re.compile(r"\$[A-Za-z_]\w*")
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
COUNTED = re.compile(r"SUCCESS: (\d+) rules found")


def main() -> int:
    """Check every dashboard and say by the exit status whether all held."""
    if shutil.which("promtool") is None:
        print("FAIL  promtool not found; on Debian: apt-get install prometheus")
        return 2
    paths = sorted(DASHBOARDS.glob("*.json"))
    if not paths:
        print(f"FAIL  no dashboard in {DASHBOARDS.relative_to(ROOT)}")
        return 1
    problems = 0
    for path in paths:
        queries = dict(expressions(json.loads(path.read_text(encoding="utf-8"))))
        problem = check(queries)
        problems += problem is not None
        verdict = f"FAIL  {path.name}: {problem}"
        print(verdict if problem else f"ok    {path.name}: {len(queries)} queries are valid")
    return 1 if problems else 0


def expressions(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every query of a dashboard, with a name that says where it stands."""
    for panel in panels(document):
        for target in panel.get("targets", []):
            yield f"panel_{panel['id']}_{target['refId']}", target["expr"]
    for number, annotation in enumerate(document["annotations"]["list"]):
        yield f"annotation_{number}", annotation["expr"]
    for variable in document["templating"]["list"]:
        if wanted := LABEL_VALUES.fullmatch(variable["query"]):
            yield f"variable_{variable['name']}", wanted[1]


def panels(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard, rows and what is folded into them included."""
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels") or []


def substituted(expression: str) -> str:
    """The query as Prometheus would get it, with everything selected."""
    for macro, text in MACROS.items():
        expression = expression.replace(macro, text)
    return VARIABLE.sub(".+", expression)


def check(queries: dict[str, str]) -> str | None:
    """What promtool says against these queries, in one line, or None."""
    rules = [
        {"record": f"dashboard:{name}", "expr": substituted(query)}
        for name, query in queries.items()
    ]
    # JSON is YAML, too, and needs no library.
    text = json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queries.yml"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
        )
    said = " ".join((done.stdout + done.stderr).replace(f"{file}: ", "").split())
    if done.returncode != 0:
        return said
    counted = COUNTED.search(said)
    if counted is None or int(counted[1]) != len(queries):
        return f"promtool did not look at all {len(queries)} queries: {said}"
    return None


if __name__ == "__main__":
    sys.exit(main())
