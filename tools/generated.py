"""What every generator of a committed file has in common: write it, or check that it is current.

python tools/GENERATOR.py            writes the file
python tools/GENERATOR.py --check    exits 1, with one line, when the committed file differs
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(path: Path, text: str, description: str) -> int:
    """Write `text` to `path`, or with `--check` compare the two; the exit status."""
    return main_of_several({path: text}, description)


def main_of_several(texts: Mapping[Path, str], description: str) -> int:
    """Write each text to its path, or with `--check` compare them; the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a file is not current"
    )
    check: bool = parser.parse_args().check
    stale = 0
    for path, text in texts.items():
        current = path.read_text(encoding="utf-8") if path.exists() else None
        if current == text:
            continue
        name = path.relative_to(ROOT)
        if check:
            stale += 1
            state = "is missing" if current is None else "is not what its generator makes"
            print(f"{name} {state}; run `make documents`")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{name} written")
    return 1 if stale else 0
