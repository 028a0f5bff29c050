"""How every board looks: its variables, the order of its rows, and the three kinds of panels.

A board is a list of rows, each a list of panels. Rows have names from ROWS and stand in that order:

    Now        figures of this moment, coloured by the thresholds of the alert rules
    Lag        what consumers have not read
    Load       how much there is to do
    Latency    how long it takes
    State      what there is
    Trouble    what should stay at zero

`ours` and `node` write a metric with the matchers of the variables `$cluster` and `$broker`, and
so does each query: a board never adds up clusters that nobody chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog import builder as cog
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

ROWS: Final = ("Now", "Lag", "Load", "Latency", "State", "Trouble")
SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "skylarkmq"
WIDTH: Final = 24

SIGNS: Final = {"$": "=~", "!": "!="}

# Grafana's names of units.
COUNT, PER_SECOND, BYTES, BYTES_PER_SECOND = "short", "cps", "bytes", "binBps"
SECONDS, MILLISECONDS, RATIO, CORES = "s", "ms", "percentunit", "none"

Panel = cog.Builder[dashboard.Panel]
Query = tuple[str, str]  # PromQL, what the legend shows
Steps = Sequence[tuple[float, str]]  # from which value on, which colour

ANY: Final[Steps] = ((1, "red"),)
"""Any is too many."""
SLOW: Final[Steps] = ((1, "red"),)
DISK: Final[Steps] = ((0.75, "yellow"), (0.85, "orange"), (0.901, "red"))
OLD: Final[Steps] = ((600, "orange"), (3600, "red"))
FAR: Final[Steps] = ((256 << 20, "red"),)
TOO_FEW: Final[Steps] = ((2, "green"),)

# Metrics that several boards show.
SENT: Final = "rocketmq_messages_in_total"
READ: Final = "rocketmq_messages_out_total"
DLQ: Final = "rocketmq_send_to_dlq_messages_total"
FSYNC: Final = "skylarkmq_store_fsync_duration_seconds_bucket"
ACK: Final = "skylarkmq_store_ack_wait_seconds_bucket"

EACH: Final = "broker, instance"
HERE: Final = "{{broker}} {{instance}}"


def chosen(name: str, **matchers: str) -> str:
    """Return a metric with its labels: a variable may be several, `!` stands for others than it."""
    written = (
        f'{label}{SIGNS.get(value[0], "=")}"{value.removeprefix("!")}"'
        for label, value in matchers.items()
    )
    return f"{name}{{{','.join(written)}}}"


def ours(name: str, **matchers: str) -> str:
    """Return one of our metrics, of the chosen clusters and brokers."""
    return chosen(name, cluster="$cluster", broker="$broker", **matchers)


def node(name: str, **matchers: str) -> str:
    """Return one of RocketMQ 5's metrics, of the chosen clusters and brokers."""
    return chosen(name, cluster="$cluster", node_id="$broker", **matchers)


def group_lag(name: str, **matchers: str) -> str:
    """Return a figure of each group in each topic; of a master and its copies the largest."""
    return f"max by (cluster, node_id, consumer_group, topic) ({node(name, **matchers)})"


def process(name: str) -> str:
    """Return a metric of the process, which names no broker, where a chosen broker runs."""
    return f"{name} and on (job, instance) {ours('skylarkmq_build_info')}"


def rate(series: str) -> str:
    """Return by how much a counter grows a second, over what the board's width makes sensible."""
    return f"rate({series}[$__rate_interval])"


def quantile(part: float, histogram: str, by: str) -> str:
    """Return below which value so large a part of a histogram is.

    Args:
        histogram: made by `ours` or `node`, of the buckets.
        by: labels that stay, with commas.
    """
    return f"histogram_quantile({part}, sum by ({by}, le) ({rate(histogram)}))"


def _targets(panel: Panel, queries: Sequence[Query], *, instant: bool, as_table: bool) -> None:
    for number, (expression, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(expression).ref_id(chr(ord("A") + number))
        query.datasource(SOURCE).legend_format(legend)
        query = query.instant() if instant else query.range()
        if as_table:
            query.format(PromQueryFormat.TABLE)
        panel.with_target(query)  # type: ignore[attr-defined]


def _thresholds(steps: Steps) -> builders.ThresholdsConfig:
    made = [dashboard.Threshold(value=None, color="green")]
    made += [dashboard.Threshold(value=value, color=colour) for value, colour in steps]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)


def figure(title: str, text: str, query: str, unit: str = COUNT, steps: Steps = ()) -> Panel:
    """Return one number of this moment; a row has room for six."""
    panel = (
        stat.Panel()
        .title(title).description(text).unit(unit).span(4).height(4).datasource(SOURCE)
        .thresholds(_thresholds(steps)).no_value("none")
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )  # fmt: skip
    _targets(panel, [(query, "")], instant=True, as_table=False)
    return panel


def graph(title: str, text: str, unit: str, *queries: Query, steps: Steps = ()) -> Panel:
    """Return lines over time; a row has room for three. Steps are drawn as lines."""
    panel = (
        timeseries.Panel()
        .title(title).description(text).unit(unit).span(8).height(8).min(0).datasource(SOURCE)
        .thresholds(_thresholds(steps))
        .line_width(1).fill_opacity(10).show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True).calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
    )  # fmt: skip
    if steps:
        style = common_builders.GraphThresholdsStyleConfig()
        panel.thresholds_style(style.mode(common.GraphTresholdsStyleMode.DASHED))
    _targets(panel, queries, instant=False, as_table=False)
    return panel


def listing(title: str, text: str, *columns: tuple[str, str, str], hidden: str = "") -> Panel:
    """Return a table: a row for each set of labels, a column for each query.

    Args:
        columns: PromQL, the head of the column, the unit.
        hidden: labels that are not shown, with commas.
    """
    panel = (
        table.Panel()
        .title(title).description(text).span(WIDTH).height(8).datasource(SOURCE)
        .thresholds(_thresholds(())).unit(COUNT)
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    )  # fmt: skip
    letters = [chr(ord("A") + number) for number in range(len(columns))]
    # A table with one query calls its column "Value", one with several "Value #A" and so on.
    values = ["Value"] if len(columns) == 1 else [f"Value #{letter}" for letter in letters]
    names = {value: head for value, (_, head, _) in zip(values, columns, strict=True)}
    away = {name.strip(): True for name in ("Time", *hidden.split(",")) if name.strip()}
    options = {"excludeByName": away, "renameByName": names, "indexByName": {}}
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=options))
    for _, head, unit in columns:
        panel.override_by_name(head, [dashboard.DynamicConfigValue(id_val="unit", value=unit)])
    _targets(panel, [(query, "") for query, _, _ in columns], instant=True, as_table=True)
    return panel


@dataclass(frozen=True)
class Board:
    """One board.

    Attributes:
        uid: its place in links: `/d/<uid>`; also the name of its file.
        variables: name and query of those it has, `$datasource` aside.
        rows: name and panels, in the order of ROWS.
    """

    uid: str
    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[tuple[str, str]] = (
        ("cluster", "label_values(skylarkmq_ready, cluster)"),
        ("broker", 'label_values(skylarkmq_ready{cluster=~"$cluster"}, broker)'),
    )

    def build(self) -> dashboard.Dashboard:
        """Return it as Grafana wants it; panels are numbered in their order."""
        board = (
            builders.Dashboard(self.title)
            .uid(self.uid).description(self.text).tags([TAG]).readonly().timezone("browser")
            .time("now-1h", "now").refresh("30s").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .with_variable(
                builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
            )
            .link(
                builders.DashboardLink("SkylarkMQ").type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags([TAG]).as_dropdown(True).include_vars(True).keep_time(True)
            )
        )  # fmt: skip
        for name, query in self.variables:
            board.with_variable(
                builders.QueryVariable(name).label(name.capitalize()).datasource(SOURCE)
                .query(query).multi(True).include_all(True).all_value(".*")
                .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
                .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
                .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
            )  # fmt: skip
        for name, panels in self.rows:
            board.with_row(builders.Row(name))
            for panel in panels:
                board.with_panel(panel)
        built = board.build()
        for number, made in enumerate(built.panels or (), 1):
            made.id_val = number
        return built
