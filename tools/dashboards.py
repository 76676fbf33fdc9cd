"""Generates the Grafana dashboards.

    python tools/dashboards.py            writes dashboards/*.json
    python tools/dashboards.py --check    exits 1 when a committed file differs

They are classic dashboard JSON, schema 42, the one form that Grafana provisions from a file.
What Grafana itself exports may be another: change the generator, never the file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from dashboard_parts import DATASOURCE, SERVER, Row, arrange, metric, sized
from generated import ROOT, main_of_several
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard
from panels_budget import BUDGET
from panels_figures import (
    GROWTH,
    KV_VERDICT,
    MEASURING_VERDICT,
    MEMORY_VERDICT,
    OTHERS,
    PERIOD,
    RATE,
    READABLE,
    SCRAPED,
    WAITING,
)
from panels_gpu_memory import GROWTH_AND_HEADROOM
from panels_health import DATA_AGE, FALL, HEADROOM, INDICATORS, KV_USAGE, PREEMPTED, VLLM
from panels_host import HOST
from panels_kv_cache import KV_CACHE
from panels_preemptions import PREEMPTIONS
from panels_sidecar import SIDECAR
from panels_verdicts import HOLDING, VERDICTS, WORST

FOLDER = ROOT / "dashboards"
HEALTHY = "Is it healthy?"
STATES = (
    "A gap in a curve is missing data; not available means that the sidecar cannot tell, with the "
    "reason; No data means that nothing was collected."
)


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `slug` is its file's name and its lasting address in Grafana."""

    slug: str
    title: str
    description: str
    rows: tuple[Row, ...]


BOARDS = (
    Board(
        "vllm-memory",
        "vLLM / Memory health",
        "Is the memory of a vLLM server healthy, which verdict holds, and what is to be done. "
        + STATES,
        (
            Row(
                100,
                HEALTHY,
                (
                    sized(VLLM, 3, 8),
                    WORST,
                    HOLDING,
                    sized(DATA_AGE, 5, 5),
                    sized(PREEMPTED, 6, 5),
                    sized(KV_USAGE, 7, 5),
                    sized(HEADROOM, 6, 5),
                ),
            ),
            VERDICTS,
            INDICATORS,
            HOST,
        ),
    ),
    Board(
        "vllm-kv-cache",
        "vLLM / KV cache and preemptions",
        "How full the KV cache is, what a request takes of it, whether requests are thrown out of "
        "it, and what that costs. " + STATES,
        (
            Row(
                100,
                HEALTHY,
                (
                    KV_VERDICT,
                    sized(KV_USAGE, 6, 5),
                    sized(PREEMPTED, 5, 5),
                    RATE,
                    WAITING,
                ),
            ),
            KV_CACHE,
            PREEMPTIONS,
            FALL,
        ),
    ),
    Board(
        "vllm-gpu-memory",
        "vLLM / GPU memory budget",
        "Where the memory of each GPU goes: by part, by owner, how it grows and what is left. "
        + STATES,
        (
            Row(
                100,
                HEALTHY,
                (MEMORY_VERDICT, sized(HEADROOM, 6, 5), OTHERS, GROWTH, READABLE),
            ),
            BUDGET,
            GROWTH_AND_HEADROOM,
        ),
    ),
    Board(
        "vllm-sidecar",
        "vLLM / Sidecar",
        "Whether the other dashboards can be relied on: sources, periods, failures, what is "
        "missing. " + STATES,
        (
            Row(
                100,
                HEALTHY,
                (MEASURING_VERDICT, SCRAPED, sized(VLLM, 4, 5), sized(DATA_AGE, 8, 5), PERIOD),
            ),
            SIDECAR,
        ),
    ),
)


def variable(name: str, label: str, source: str) -> builders.QueryVariable:
    """A choice among the values of a label; all of them unless something is chosen."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(f"label_values({source}, {name})")
        .definition(f"label_values({source}, {name})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def annotation(
    name: str, expression: str, color: str, title: str, text: str
) -> builders.AnnotationQuery:
    """A mark on all panels wherever the expression has a value."""
    return (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(color)
        .expr(expression)
        .step("15s")
        .title_format(title)
        .text_format(text)
    )


def build(board: Board) -> dashboard.Dashboard:
    """The dashboard, with its panels in place."""
    built = (
        builders.Dashboard(board.title)
        .uid(board.slug)
        .description(board.description)
        .tags(["vllm", "vllm-sidecar"])
        .readonly()
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(variable("job", "Job", "vllm_sidecar_build_info"))
        .with_variable(variable("instance", "Instance", 'vllm_sidecar_build_info{job=~"$job"}'))
        .with_variable(variable("model_name", "Model", metric("engine_restarts_total", SERVER)))
        .with_variable(
            variable(
                "engine",
                "Engine",
                metric("engine_restarts_total", SERVER + ', model_name=~"$model_name"'),
            )
        )
        .with_variable(variable("gpu", "GPU", metric("gpu_info", SERVER)))
        .annotation(
            annotation(
                "Firing alerts",
                f'ALERTS{{{SERVER}, alertstate="firing"}}',
                "red",
                "{{alertname}}",
                "{{severity}} on {{instance}}",
            )
        )
        .annotation(
            annotation(
                "Engine restarts",
                f"increase({metric('engine_restarts_total')}[1m]) > 0",
                "blue",
                "vLLM restarted",
                "engine {{engine}} of {{model_name}} on {{instance}}",
            )
        )
        .link(
            builders.DashboardLink("vLLM dashboards")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["vllm"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .build()
    )
    built.panels = arrange(board.rows)
    return built


def as_json(built: dashboard.Dashboard) -> str:
    """The same text for the same dashboard, whatever the order in which it was put together."""
    document: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    # The SDK can only say "in the controls menu"; without the key links and annotations are shown.
    for entry in (*document["links"], *document["annotations"]["list"]):
        entry.pop("placement", None)
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    texts = {FOLDER / f"{board.slug}.json": as_json(build(board)) for board in BOARDS}
    sys.exit(main_of_several(texts, "Generate the Grafana dashboards."))
