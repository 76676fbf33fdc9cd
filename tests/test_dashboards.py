"""The rules that every dashboard keeps, in the spirit of Grafana's dashboard-linter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.exposition import DECLARATIONS, NAMESPACE, OWN_NAMES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_dashboards  # noqa: E402

Json = dict[str, Any]

FILES = sorted((ROOT / "dashboards").glob("*.json"))
DOCUMENTS: dict[str, Json] = {path.name: json.loads(path.read_text("utf-8")) for path in FILES}
SELECTOR = re.compile(r"\b((?:vllm_sidecar_\w+|up|ALERTS)\b)(?:\{([^}]*)\})?")
OF_PROMETHEUS = {"up", "ALERTS"}
UNITS = {"none", "short", "s", "bytes", "percentunit", "reqps"}
GRID_WIDTH = 24


def _exported_names() -> dict[str, str]:
    """Each name that a scrape shows, and the kind of its metric; a histogram has three."""
    names: dict[str, str] = {}
    for declaration in DECLARATIONS:
        name = NAMESPACE + declaration.name
        if declaration.kind == "histogram":
            names |= {name + suffix: "counter" for suffix in ("_bucket", "_sum", "_count")}
        else:
            names[name] = declaration.kind
    return names


NAMES = _exported_names()


def _panels(document: Json) -> list[Json]:
    return [panel for panel in check_dashboards.panels(document) if panel["type"] != "row"]


def _all_panels() -> Iterator[Any]:
    for file, document in DOCUMENTS.items():
        for panel in _panels(document):
            yield pytest.param(panel, id=f"{file}-{panel.get('id')}")


def _all_queries() -> Iterator[Any]:
    for file, document in DOCUMENTS.items():
        for name, expression in check_dashboards.expressions(document):
            yield pytest.param(expression, id=f"{file}-{name}")


def _variables(document: Json) -> dict[str, Json]:
    return {variable["name"]: variable for variable in document["templating"]["list"]}


each_document = pytest.mark.parametrize("document", list(DOCUMENTS.values()), ids=list(DOCUMENTS))
each_panel = pytest.mark.parametrize("panel", list(_all_panels()))
each_query = pytest.mark.parametrize("expression", list(_all_queries()))


# The generator runs in a process of its own: the SDK warns when it is imported, and here a
# warning is an error.


def _generate(root: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-B", str(root / "tools" / "dashboards.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_committed_files_are_what_the_generator_makes() -> None:
    assert _generate(ROOT, "--check") == (0, "")


def test_check_mode_fails_with_a_line_for_each_file_that_differs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    status, said = _generate(tmp_path, "--check")
    assert (status, said.count("\n")) == (1, len(FILES))
    for file in FILES:
        assert f"dashboards/{file.name} is missing" in said

    assert _generate(tmp_path)[0] == 0
    for file in FILES:
        assert (tmp_path / "dashboards" / file.name).read_bytes() == file.read_bytes()
    written = tmp_path / "dashboards" / "vllm-memory.json"
    assert _generate(tmp_path, "--check") == (0, "")

    written.write_text(written.read_text("utf-8").replace("0.95", "0.96"), "utf-8")
    status, said = _generate(tmp_path, "--check")
    assert (status, said.count("\n")) == (1, 1)
    assert "make documents" in said


# -------------------------------------------------------------------------------------------------
# The dashboard as a whole


@each_document
def test_what_kind_of_file_it_is(document: Json) -> None:
    assert document["schemaVersion"] == 42
    assert document["editable"] is False
    assert DOCUMENTS[document["uid"] + ".json"] is document
    assert document["title"].startswith("vLLM / ")
    assert document["tags"] == ["vllm", "vllm-sidecar"]
    assert (document["refresh"], document["time"]["from"]) == ("10s", "now-1h")
    assert "No data" in document["description"]


def test_the_dashboards() -> None:
    titles = {name: document["title"] for name, document in DOCUMENTS.items()}
    assert titles == {
        "vllm-memory.json": "vLLM / Memory health",
        "vllm-kv-cache.json": "vLLM / KV cache and preemptions",
        "vllm-gpu-memory.json": "vLLM / GPU memory budget",
        "vllm-sidecar.json": "vLLM / Sidecar",
    }


@each_document
def test_the_others_are_one_click_away(document: Json) -> None:
    (link,) = document["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["vllm"])
    assert link["includeVars"]
    assert link["keepTime"]
    assert "placement" not in link


@each_document
def test_variables(document: Json) -> None:
    variables = _variables(document)
    assert list(variables) == ["datasource", "job", "instance", "model_name", "engine", "gpu"]
    datasource = variables.pop("datasource")
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    assert datasource["label"] == "Data source"
    for name, variable in variables.items():
        assert variable["type"] == "query", name
        assert variable["datasource"]["uid"] == "${datasource}", name
        assert variable["refresh"] == 2, f"{name} must follow the time range"
        assert variable["multi"], name
        assert variable["includeAll"], name
        assert variable["allValue"] == ".+", name
        assert variable["label"], name
        wanted = check_dashboards.LABEL_VALUES.fullmatch(variable["query"])
        assert wanted is not None, name
        assert wanted[2] == name
        source = SELECTOR.match(wanted[1])
        assert source is not None, name
        declared = {NAMESPACE + each.name: set(each.labels) for each in DECLARATIONS}
        assert name in declared[source[1]] | {"job", "instance"}


@each_document
def test_panel_numbers_are_stable_and_unique(document: Json) -> None:
    numbers = [panel["id"] for panel in check_dashboards.panels(document)]
    assert len(numbers) == len(set(numbers))
    assert all(number > 0 for number in numbers)


@each_document
def test_panels_do_not_overlap_and_fit_the_grid(document: Json) -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in document["panels"]:
        for shown in (panel, *(panel.get("panels") or [])):
            place = shown["gridPos"]
            assert place["x"] + place["w"] <= GRID_WIDTH
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    other = taken.setdefault((x, y), shown["id"])
                    assert other == shown["id"], f"{shown['id']} covers {other}"


@each_document
def test_rows(document: Json) -> None:
    rows = [panel for panel in document["panels"] if panel["type"] == "row"]
    assert rows[0]["title"] == "Is it healthy?"
    assert all(bool(row.get("panels")) == row["collapsed"] for row in rows)


@each_document
def test_alerts_and_restarts_are_marked(document: Json) -> None:
    queries = {entry["name"]: entry["expr"] for entry in document["annotations"]["list"]}
    assert 'alertstate="firing"' in queries["Firing alerts"]
    assert "vllm_sidecar_engine_restarts_total" in queries["Engine restarts"]
    for entry in document["annotations"]["list"]:
        assert entry["datasource"]["uid"] == "${datasource}"
        assert entry["enable"]
        assert "placement" not in entry


# -------------------------------------------------------------------------------------------------
# Panels


@each_panel
def test_panel_says_what_it_is(panel: Json) -> None:
    assert panel["title"]
    description = panel["description"]
    assert len(description.split()) >= 25, "say what it is, what is good, what is bad, what to do"
    assert description.endswith(".")
    assert re.search(r"\b(good|fine|healthy|normal|no fault|harmless)\b", description, re.I), (
        "say what is good"
    )
    for word in ("eager", "wasted", "—"):
        assert word not in description


@each_panel
def test_panel_gets_its_data_from_the_chosen_source(panel: Json) -> None:
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"], "a panel without a query"
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert target["expr"].strip()
        assert target["instant"] != target["range"]


@each_panel
def test_unit_and_range(panel: Json) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axis = panel["options"].get("yAxis")
    assert defaults["unit"] in UNITS
    assert (axis or defaults).get("unit") in UNITS
    for place in (defaults, axis or {}):
        if place.get("unit") == "percentunit":
            assert (place["min"], place["max"]) == (0, 1)
    named = " ".join(target["expr"] for target in panel["targets"])
    shown = set(re.findall(r"vllm_sidecar_(\w+)\{", named)) - {"unavailable_info"}
    is_a_rate = "rate(" in named or " / " in named
    if panel["type"] in ("stat", "timeseries") and not is_a_rate:
        for suffix, unit in (("_ratio", "percentunit"), ("_bytes", "bytes"), ("_seconds", "s")):
            if any(name.endswith(suffix) for name in shown):
                assert defaults["unit"] == unit


@each_panel
def test_states_stay_apart(panel: Json) -> None:
    """Not available is a NaN with a name; nothing at all is never given another name."""
    defaults = panel["fieldConfig"]["defaults"]
    assert "noValue" not in defaults
    kinds = {mapping["options"].get("match") for mapping in defaults.get("mappings", [])}
    assert not kinds & {"null", "null+nan", "empty"}
    if panel["type"] != "heatmap" and any("NaN" in target["expr"] for target in panel["targets"]):
        assert "nan" in kinds
    if panel["type"] in ("timeseries", "state-timeline"):
        assert defaults["custom"]["spanNulls"] is False
    if panel["type"] == "stat":
        assert panel["options"]["reduceOptions"]["calcs"] == ["last"]
        assert all(target["instant"] for target in panel["targets"])


@each_panel
def test_curves_have_a_legend_with_last_and_max(panel: Json) -> None:
    if panel["type"] == "timeseries":
        legend = panel["options"]["legend"]
        assert (legend["displayMode"], legend["showLegend"]) == ("table", True)
        assert {"last", "max"} <= set(legend["calcs"])


# -------------------------------------------------------------------------------------------------
# Queries


@each_query
def test_each_selector_names_an_exported_metric_and_the_chosen_server(expression: str) -> None:
    found = list(SELECTOR.finditer(expression))
    assert found
    for selector in found:
        name, matchers = selector[1], selector[2]
        assert name in NAMES or name in OF_PROMETHEUS, name
        if name == "vllm_sidecar_build_info":
            continue  # the choice of a job and an instance starts from it
        assert matchers is not None, f"{name} has no matchers"
        assert 'job=~"$job"' in matchers
        assert 'instance=~"$instance"' in matchers


@each_query
def test_labels_and_indicators_exist(expression: str) -> None:
    labels = {NAMESPACE + each.name: set(each.labels) for each in DECLARATIONS}
    indicators = {each.name for each in DECLARATIONS}
    for name, matchers in SELECTOR.findall(expression):
        family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in labels else name
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - {"job", "instance"}
        if family in labels:
            assert used <= labels[family], name
        for wanted in re.findall(r'indicator=~"([^"]+)"', matchers):
            assert set(wanted.split("|")) <= indicators


@each_query
def test_rates_are_of_counters_and_counters_are_rated(expression: str) -> None:
    rated = re.findall(r"\b(rate|irate|increase)\((\w+)\{[^}]*\}\[([^\]]+)\]\)", expression)
    assert len(rated) == len(re.findall(r"\b(?:rate|irate|increase)\(", expression))
    for function, name, window in rated:
        assert NAMES[name] == "counter", f"{function} of {name}"
        if function != "increase":
            assert window == "$__rate_interval"
    bare = set(re.findall(r"vllm_sidecar_\w+", expression)) - {name for _, name, _ in rated}
    if not expression.startswith(tuple(bare)) or len(bare) > 1:  # a variable's source may be bare
        assert not [name for name in bare if NAMES[name] == "counter"]


@each_query
def test_no_ratio_is_summed(expression: str) -> None:
    for argument in re.findall(r"\bsum\b[^(]*(?:\([^)]*\))?\s*\((.*)\)", expression):
        for name in re.findall(r"vllm_sidecar_\w+", argument):
            assert not name.endswith("_ratio"), f"sum of {name}"


# -------------------------------------------------------------------------------------------------
# Against what the sidecar exported for the recordings of a real server


NOT_RECORDED = {name for name in (each.name for each in DECLARATIONS) if name.startswith("host_")}
"""The recordings are older than the reading of the host's memory."""


def _exported_pages() -> Iterator[Any]:
    """Names with a sample, and indicators with a reason, of each page with a server on it."""
    for path in sorted((ROOT / "tests" / "golden").glob("*/*.prom")):
        page = path.read_text("utf-8")
        if "vllm_sidecar_requests_running{" in page:
            samples = set(re.findall(r"^vllm_sidecar_(\w+)[{ ]", page, re.MULTILINE))
            reasons = set(re.findall(r'unavailable_info\{.*indicator="(\w+)"', page))
            yield pytest.param(samples, reasons, id=f"{path.parent.name}-{path.stem}")


@each_document
@pytest.mark.parametrize(("samples", "reasons"), list(_exported_pages()))
def test_each_panel_has_a_value_or_a_reason(
    samples: set[str], reasons: set[str], document: Json
) -> None:
    """While vLLM answers no panel says "No data", which is kept for a collection that died."""
    for panel in _panels(document):
        queries = " ".join(target["expr"] for target in panel["targets"])
        named = set(re.findall(r"vllm_sidecar_(\w+)\{", queries)) - {"unavailable_info"}
        asked = set("|".join(re.findall(r'indicator=~"([^"]+)"', queries)).split("|"))
        of_a_server = named - OWN_NAMES - NOT_RECORDED
        if of_a_server and not of_a_server & samples:
            assert asked & reasons, panel["title"]


# -------------------------------------------------------------------------------------------------
# promtool


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_invalid_query_is_named() -> None:
    assert check_dashboards.check({"panel_1_A": 'rate(up{job="$job"}[$__rate_interval])'}) is None
    said = check_dashboards.check({"panel_1_A": "up", "panel_7_B": "rate(up)"})
    assert said is not None
    assert "panel_7_B" in said
    assert "\n" not in said


def test_missing_promtool_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert check_dashboards.main() == 2
    assert "apt-get install prometheus" in capsys.readouterr().out
