"""The vocabulary of the dashboards: selectors, queries, thresholds, panels and their layout.

Every panel must let its reader tell three states apart. A value is drawn. An indicator that the
sidecar could not compute is there as "not available", with the reason, out of
`unavailable_info` (see `or_why`). And when nothing was collected there is nothing: Grafana says
"No data", and no panel here replaces those words by calmer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table
from grafana_foundation_sdk.builders import timeseries as lines_builders
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVER = 'job=~"$job", instance=~"$instance"'
ENGINE = f'{SERVER}, model_name=~"$model_name", engine=~"$engine"'
GPU = f'{SERVER}, gpu=~"$gpu"'
ENGINE_NAME = "{{instance}} / {{engine}}"
GRID_WIDTH = 24
REF_IDS = "ABCDEFGHIJ"

Builder = TypeVar(
    "Builder", stat.Panel, lines_builders.Panel, heatmap.Panel, table.Panel, statetimeline.Panel
)


def metric(name: str, where: str = ENGINE, **labels: str) -> str:
    """A selector for one metric of the sidecar, named without its prefix."""
    given = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f"vllm_sidecar_{name}{{{where}{given}}}"


def why_not(names: Sequence[str], where: str = ENGINE) -> str:
    """One NaN for each of these indicators that could not be computed, labelled with the reason."""
    wanted = "|".join(names)
    return f'vllm_sidecar_unavailable_info{{{where}, indicator=~"{wanted}"}} * NaN'


def or_why(expression: str, name: str, where: str = ENGINE) -> str:
    """The value, or NaN with the reason where it is not available, or nothing at all."""
    return f"{expression} or {why_not([name], where)}"


# -------------------------------------------------------------------------------------------------
# Queries


@dataclass(frozen=True, slots=True)
class Query:
    """One target of a panel. Instant queries give the present moment alone."""

    expression: str
    legend: str = ""
    instant: bool = False
    format: PromQueryFormat = PromQueryFormat.TIME_SERIES

    def build(self, ref_id: str) -> prometheus.Dataquery:
        query = (
            prometheus.Dataquery()
            .datasource(DATASOURCE)
            .expr(self.expression)
            .legend_format(self.legend)
            .format(self.format)
            .ref_id(ref_id)
        )
        return query.instant() if self.instant else query.range()


def missing(*names: str, where: str = ENGINE) -> Query:
    """Puts the indicators that are not available now into the legend, with the reason."""
    return Query(why_not(names, where), "{{indicator}}: {{reason}}", instant=True)


# -------------------------------------------------------------------------------------------------
# Colours. A colour that means trouble stands only where an alert draws the same line.


def levels(base: str, *steps: tuple[float, str]) -> dashboard_builders.ThresholdsConfig:
    """A base colour, and the value from which on each other colour holds."""
    first = dashboard.Threshold(value=None, color=base)
    rest = [dashboard.Threshold(value=value, color=color) for value, color in steps]
    return (
        dashboard_builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([first, *rest])
    )


def words(*meanings: tuple[str, str, str]) -> list[dashboard.ValueMapping]:
    """Value, text and colour of each value that has a name; NaN is always "not available"."""
    named: list[dashboard.ValueMapping] = [
        dashboard.SpecialValueMap(
            dashboard.DashboardSpecialValueMapOptions(
                match=dashboard.SpecialValueMatch.NA_N,
                result=dashboard.ValueMappingResult(text="not available", color="text", index=0),
            )
        )
    ]
    if meanings:
        results = {
            value: dashboard.ValueMappingResult(text=text, color=color, index=number)
            for number, (value, text, color) in enumerate(meanings, start=1)
        }
        named.append(dashboard.ValueMap(results))
    return named


# -------------------------------------------------------------------------------------------------
# Panels


@dataclass(frozen=True, slots=True)
class About:
    """What every panel has: a stable number, a title, what it means, its unit and its size."""

    number: int
    title: str
    description: str
    unit: str
    width: int
    height: int = 8

    def apply(self, panel: Builder, queries: Iterable[Query]) -> Builder:
        panel.id(self.number).title(self.title).description(self.description)
        panel.datasource(DATASOURCE).unit(self.unit)
        panel.grid_pos(dashboard.GridPos(h=self.height, w=self.width))
        if self.unit == "percentunit":
            panel.min(0).max(1)
        for ref_id, query in zip(REF_IDS, queries, strict=False):
            panel.with_target(query.build(ref_id))
        return panel


def figures(
    about: About,
    *queries: Query,
    meanings: Sequence[tuple[str, str, str]] = (),
    thresholds: dashboard_builders.ThresholdsConfig | None = None,
    decimals: int | None = None,
) -> dashboard.Panel:
    """Large figures of the present moment, one for each series."""
    panel = (
        about.apply(stat.Panel(), queries)
        .mappings(words(*meanings))
        .thresholds(thresholds or levels("blue"))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        # The last value even if it is NaN: the last that is not null would show an older one.
        .reduce_options(common_builders.ReduceDataOptions().calcs(["last"]))
    )
    if decimals is not None:
        panel.decimals(decimals)
    return panel.build()


def lines(
    about: About,
    *queries: Query,
    thresholds: dashboard_builders.ThresholdsConfig | None = None,
    stacked: bool = False,
    axis: str = "",
) -> dashboard.Panel:
    """Curves over time; a gap is a gap. Thresholds, where given, are dashed lines."""
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["last", "max"])
    )
    tooltip = (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    panel = (
        about.apply(lines_builders.Panel(), queries)
        .mappings(words())
        .legend(legend)
        .tooltip(tooltip)
        .span_nulls(False)
        .line_width(1)
        .fill_opacity(60 if stacked else 5)
    )
    if about.unit != "percentunit":
        panel.axis_soft_min(0)
    if axis:
        panel.axis_label(axis)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
        # A NaN in the stack would take everything above it along.
        for ref_id, query in zip(REF_IDS, queries, strict=False):
            if query.instant:
                alone = dashboard.DynamicConfigValue("custom.stacking", {"mode": "none"})
                panel.override_by_query(ref_id, [alone])
    if thresholds is not None:
        style = common_builders.GraphThresholdsStyleConfig()
        panel.thresholds(thresholds)
        panel.thresholds_style(style.mode(common.GraphThresholdsStyleMode.DASHED))
    return panel.build()


def states(
    about: About, *queries: Query, meanings: Sequence[tuple[str, str, str]]
) -> dashboard.Panel:
    """A band for each series, coloured by what its value is called."""
    return (
        about.apply(statetimeline.Panel(), queries)
        .mappings(words(*meanings))
        .legend(common_builders.VizLegendOptions().show_legend(False).calcs([]))
        .span_nulls(False)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(70)
        .build()
    )


def heat(about: About, query: Query) -> dashboard.Panel:
    """A histogram of a ratio over time; `about.unit` is that of the cells, which are counts."""
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues")
    panel = about.apply(heatmap.Panel(), [query]).calculate(False).color(colour)
    return panel.y_axis(heatmap.YAxisConfig().unit("percentunit").min(0).max(1)).build()


def rows_of(
    about: About,
    *queries: Query,
    columns: Sequence[str],
    looks: Mapping[str, Mapping[str, object]] | None = None,
) -> dashboard.Panel:
    """A table of the present moment: these labels as columns, in this order.

    `looks` are properties of single columns, as Grafana's field overrides name them.
    """
    order = {name: number for number, name in enumerate(columns)}
    options: dict[str, Any] = {"include": {"names": list(columns)}}
    panel = (
        about.apply(table.Panel(), queries)
        .with_transformation(dashboard.DataTransformerConfig("merge", options={}))
        .with_transformation(dashboard.DataTransformerConfig("filterFieldsByName", options=options))
        .with_transformation(
            dashboard.DataTransformerConfig(
                "organize", options={"indexByName": order, "renameByName": {}}
            )
        )
    )
    for name, properties in (looks or {}).items():
        panel.override_by_name(
            name, [dashboard.DynamicConfigValue(key, value) for key, value in properties.items()]
        )
    return panel.show_header(True).build()


def for_each_gpu(panel: dashboard.Panel) -> dashboard.Panel:
    """The same panel once for each GPU that is selected."""
    panel.repeat, panel.repeat_direction, panel.max_per_row = "gpu", "h", 2
    return panel


def sized(panel: dashboard.Panel, width: int, height: int) -> dashboard.Panel:
    """The same panel in another size, for another row."""
    copy = deepcopy(panel)
    copy.grid_pos = dashboard.GridPos(h=height, w=width)
    return copy


# -------------------------------------------------------------------------------------------------
# Layout


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels; they flow from left to right and must fill each line."""

    number: int
    title: str
    panels: tuple[dashboard.Panel, ...]
    collapsed: bool = False


def arrange(rows: Iterable[Row]) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Give every panel its place. Raises ValueError where a line has a hole or two heights."""
    placed: list[dashboard.Panel | dashboard.RowPanel] = []
    y = 0
    for row in deepcopy(tuple(rows)):  # a panel may stand in several dashboards
        heading = dashboard.RowPanel(
            collapsed=row.collapsed,
            title=row.title,
            id_val=row.number,
            grid_pos=dashboard.GridPos(h=1, w=GRID_WIDTH, x=0, y=y),
        )
        y = _flow(row, y + 1)
        placed.append(heading)
        if row.collapsed:
            heading.panels = list(row.panels)
            y = heading.grid_pos.y + 1 if heading.grid_pos else y
        else:
            placed.extend(row.panels)
    return placed


def _flow(row: Row, y: int) -> int:
    x = height = 0
    for panel in row.panels:
        position = panel.grid_pos or dashboard.GridPos()
        if x and position.h != height:
            raise ValueError(f"panel {panel.id_val} is not as high as the one to its left")
        position.x, position.y, height = x, y, position.h
        x += position.w
        if x > GRID_WIDTH:
            raise ValueError(f"panel {panel.id_val} does not fit into its line")
        if x == GRID_WIDTH:
            x, y = 0, y + height
    if x:
        raise ValueError(f"the last line of {row.title!r} is not full")
    return y
