"""Generates the Grafana dashboard "vLLM / Memory".

    python tools/dashboards.py            writes dashboards/vllm-memory.json
    python tools/dashboards.py --check    exits 1 when the committed file differs

The file is classic dashboard JSON, schema 42, the one form that Grafana provisions from a file.
What Grafana itself exports may be another: change the generator, never the file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dashboard_parts import DATASOURCE, SERVER, arrange, metric
from generated import ROOT, main
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard
from panels_gpu_memory import GPU_MEMORY
from panels_health import HEALTH, INDICATORS
from panels_kv_cache import KV_CACHE
from panels_preemptions import PREEMPTIONS
from panels_sidecar import SIDECAR

PATH = ROOT / "dashboards" / "vllm-memory.json"
ROWS = (HEALTH, INDICATORS, KV_CACHE, PREEMPTIONS, GPU_MEMORY, SIDECAR)


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


def memory() -> dashboard.Dashboard:
    """The dashboard, with its panels in place."""
    built = (
        builders.Dashboard("vLLM / Memory")
        .uid("vllm-memory")
        .description(
            "Where the GPU memory of a vLLM server goes, whether its KV cache is full, idle or "
            "fragmented, and what that costs. A gap in a curve is missing data; not available "
            "means that the sidecar cannot tell, with the reason; No data means that nothing was "
            "collected."
        )
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
    built.panels = arrange(ROWS)
    return built


def as_json(built: dashboard.Dashboard) -> str:
    """The same text for the same dashboard, whatever the order in which it was put together."""
    document: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    # The SDK can only say "in the controls menu"; without the key links and annotations are shown.
    for entry in (*document["links"], *document["annotations"]["list"]):
        entry.pop("placement", None)
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(PATH, as_json(memory()), "Generate the Grafana dashboard."))
