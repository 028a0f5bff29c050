"""Building of prometheus-client's families from plain counters, with a fixed set of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from skylarkmq.common.histogram import Histogram

Row = tuple[Sequence[str], float]  # label values, value


class FamilyMaker:
    """Makes families whose series all carry the same constant labels."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        self._names = [*constant]
        self._values = [*constant.values()]

    def info(self, name: str, text: str, facts: Mapping[str, str]) -> InfoMetricFamily:
        """Return a gauge of 1 whose labels are the facts; `_info` is added to the name."""
        family = InfoMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, dict(facts))
        return family

    def gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        """Return a gauge of one series."""
        return self.gauges(name, text, (), [((), value)])

    def gauges(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[Row]
    ) -> GaugeMetricFamily:
        """Return a gauge with a series a row."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, *labels])
        for values, value in rows:
            family.add_metric([*self._values, *values], value)
        return family

    def counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        """Return a counter of one series; `_total` is added to the name."""
        return self.counters(name, text, (), [((), value)])

    def counters(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[Row]
    ) -> CounterMetricFamily:
        """Return a counter with a series a row; `_total` is added to the name."""
        family = CounterMetricFamily(name, text, labels=[*self._names, *labels])
        for values, value in rows:
            family.add_metric([*self._values, *values], value)
        return family

    def histograms(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        rows: Iterable[tuple[Sequence[str], Histogram]],
    ) -> HistogramMetricFamily:
        """Return a histogram with a series a row."""
        family = HistogramMetricFamily(name, text, labels=[*self._names, *labels])
        for values, histogram in rows:
            bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, histogram.cumulative(), strict=True))
            family.add_metric([*self._values, *values], buckets, histogram.sum)
        return family


def lines_of(bounds: Sequence[float]) -> int:
    """Return how many lines a histogram has on the page: its buckets, their count and the sum."""
    return len(bounds) + 3
