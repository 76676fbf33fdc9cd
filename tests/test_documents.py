"""Generated documents are current, and complete against the code that they describe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sidecar.exposition import DECLARATIONS, NAMESPACE
from sidecar.model import Declaration
from sidecar.settings import PREFIX, Settings, Thresholds

ROOT = Path(__file__).resolve().parent.parent
METRICS = (ROOT / "docs" / "metrics.md").read_text("utf-8")
SETTINGS = (ROOT / "docs" / "settings.md").read_text("utf-8")
PICTURE = ROOT / "docs" / "images" / "three-indicators.svg"
GENERATORS = {
    "metrics_page": "docs/metrics.md",
    "settings_page": "docs/settings.md",
    "compatibility_page": "docs/compatibility.md",
    "picture": "docs/images/three-indicators.svg",
}
THRESHOLDS = [f"{PREFIX}THRESHOLDS__{name.upper()}" for name in Thresholds.model_fields]
VARIABLES = [PREFIX + name.upper() for name in Settings.model_fields if name != "thresholds"]


def _generate(name: str, *arguments: str, root: Path = ROOT) -> tuple[int, str]:
    """Run a generator as people do; its exit status and what it printed."""
    command = [sys.executable, "-B", str(root / "tools" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", GENERATORS)
def test_committed_file_is_what_its_generator_makes(name: str) -> None:
    assert _generate(name, "--check") == (0, "")


@pytest.mark.parametrize("name", ["metrics_page", "settings_page", "compatibility_page"])
def test_check_mode_names_the_file_that_is_not_current(name: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    for file in ("generated.py", f"{name}.py"):
        (tmp_path / "tools" / file).write_bytes((ROOT / "tools" / file).read_bytes())
    status, said = _generate(name, "--check", root=tmp_path)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith(GENERATORS[name])

    assert _generate(name, root=tmp_path)[0] == 0
    assert (tmp_path / GENERATORS[name]).read_bytes() == (ROOT / GENERATORS[name]).read_bytes()
    with (tmp_path / GENERATORS[name]).open("a", encoding="utf-8") as page:
        page.write("\n")
    assert _generate(name, "--check", root=tmp_path)[0] == 1


def test_defaults_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, f"{PREFIX}PORT", "9999")
    assert _generate("settings_page", "--check") == (0, "")


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda each: each.name)
def test_each_metric_is_documented_once_with_type_and_labels(declaration: Declaration) -> None:
    start = f"| `{NAMESPACE}{declaration.name}` | "
    lines = [line for line in METRICS.splitlines() if line.startswith(start)]
    assert len(lines) == 1
    kind, labels, text = lines[0].removeprefix(start).removesuffix(" |").split(" | ", 2)
    assert kind == declaration.kind
    assert re.findall(r"`(\w+)`", labels) == list(declaration.labels)
    assert text.endswith(".")


def test_no_metric_is_documented_that_does_not_exist() -> None:
    names = set(re.findall(rf"^\| `{NAMESPACE}(\w+)`", METRICS, re.MULTILINE))
    assert names == {declaration.name for declaration in DECLARATIONS}


@pytest.mark.parametrize("variable", [*VARIABLES, *THRESHOLDS])
def test_each_setting_is_documented_once(variable: str) -> None:
    lines = [line for line in SETTINGS.splitlines() if line.startswith(f"| `{variable}` |")]
    assert len(lines) == 1
    assert lines[0].removesuffix(" |").endswith(".")


def test_no_setting_is_documented_that_does_not_exist() -> None:
    named = re.findall(rf"^\| `({PREFIX}\w+)`", SETTINGS, re.MULTILINE)
    assert named == [*VARIABLES, *THRESHOLDS]


def test_secrets_have_no_flag() -> None:
    for line in SETTINGS.splitlines():
        if "API_KEY" in line and line.startswith("|"):
            assert line.split(" | ")[1] == ""


def test_picture_is_small_well_formed_and_says_where_it_comes_from() -> None:
    text = PICTURE.read_text("utf-8")
    assert len(text) < 60_000
    root = ElementTree.fromstring(text)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert "recorded on a real H200, vLLM 0.25.0" in (title.text or "")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
