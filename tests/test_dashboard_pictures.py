"""Each dashboard has a picture that is drawn from real data and shows every panel of it.

Drawing needs Prometheus, so what is checked here is what was committed: a panel that is new or
renamed is missing in its picture until `python tools/panel_pictures.py` is run.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import check_dashboards
import pytest

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SLUGS = sorted(path.stem for path in (ROOT / "dashboards").glob("*.json"))
MOST_BYTES = 150_000


def _picture(slug: str) -> Path:
    return IMAGES / f"dashboard-{slug.removeprefix('vllm-')}.svg"


def _texts(slug: str) -> list[str]:
    root = ElementTree.parse(_picture(slug)).getroot()
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("slug", SLUGS)
def test_picture_names_the_dashboard_and_every_panel_of_it(slug: str) -> None:
    document = json.loads((ROOT / "dashboards" / f"{slug}.json").read_text("utf-8"))
    titles = [panel["title"] for panel in check_dashboards.panels(document)]
    shown = _texts(slug)
    assert document["title"] in shown
    for title in titles:
        assert title.replace("$gpu", "0") in shown, "run python tools/panel_pictures.py"


@pytest.mark.parametrize("slug", SLUGS)
def test_picture_says_where_it_comes_from_and_is_small(slug: str) -> None:
    assert any(
        "drawn by tools/panel_pictures.py from Prometheus, not by Grafana" in text
        for text in _texts(slug)
    )
    written = _picture(slug).read_text("utf-8")
    assert len(written) < MOST_BYTES
    assert "http" not in written.replace("http://www.w3.org/2000/svg", "")


def test_there_is_no_picture_without_its_dashboard() -> None:
    drawn = sorted(path.name for path in IMAGES.glob("dashboard-*.svg"))
    assert drawn == sorted(_picture(slug).name for slug in SLUGS)
