"""Passes every golden exposition to promtool, which knows what Prometheus accepts and advises."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


def main() -> int:
    """Print one line; on a complaint name the file and stop."""
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is missing; install Debian's package `prometheus`", file=sys.stderr)
        return 2
    files = sorted(GOLDEN.glob("*/*.prom"))
    for file in files:
        with file.open("rb") as text:
            result = subprocess.run(
                [promtool, "check", "metrics"], stdin=text, capture_output=True, text=True
            )
        if result.returncode != 0:
            print(f"{file.parent.name}/{file.name}: {result.stderr.strip()}", file=sys.stderr)
            return 1
    print(f"promtool check metrics: {len(files)} expositions are good")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
