"""Values over time as SVG inside the page: a small line for tables, a chart with axes.

Colours come from the style sheet by class, so that a chart is right in the dark, too. No style
stands in the SVG itself: the content security policy forbids it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from markupsafe import Markup

from skylarkmq.tools.console.history import Sample
from skylarkmq.tools.console.text import number, span

SMALL_WIDTH: Final = 96
SMALL_HEIGHT: Final = 24
WIDTH: Final = 760
HEIGHT: Final = 200
LEFT: Final = 8
RIGHT: Final = 8
TOP: Final = 22
BOTTOM: Final = 24
GAP_FACTOR: Final = 3.0
"""A pause of so many usual steps is a gap of the line."""


class _Area(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def small_line(samples: Sequence[Sample], label: str) -> Markup:
    """Return a line for a cell of a table; nothing before there are two samples."""
    if len(samples) < 2:
        return Markup("")
    area = _Area(1, 2, SMALL_WIDTH - 2, SMALL_HEIGHT - 4)
    top = max(max(sample.value for sample in samples), 1)
    lines = Markup("").join(
        Markup('<path class="line" d="{}"/>').format(_path(part))
        for part in _parts(samples, area, top)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
        'aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(SMALL_WIDTH, SMALL_HEIGHT, SMALL_WIDTH, SMALL_HEIGHT, label, lines)


def lag_chart(samples: Sequence[Sample]) -> Markup:
    """Return the chart of a group's lag; nothing before there are two samples."""
    if len(samples) < 2:
        return Markup("")
    area = _Area(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    top = _round_up(max(sample.value for sample in samples))
    parts = list(_parts(samples, area, top))
    floor = area.top + area.height
    shapes: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        y = floor - share * area.height
        shapes.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                area.left, area.left + area.width, y, y
            )
        )
        if share:
            shapes.append(
                Markup('<text class="axis" x="{}" y="{:.1f}">{}</text>').format(
                    area.left + 2, y - 4, number(top * share)
                )
            )
    for part in parts:
        fill = f"{_path(part)} L{part[-1][0]:.1f} {floor:.1f} L{part[0][0]:.1f} {floor:.1f} Z"
        shapes.append(Markup('<path class="area" d="{}"/>').format(fill))
        shapes.append(Markup('<path class="line" d="{}"/>').format(_path(part)))
    x, y = parts[-1][-1]
    shapes.append(Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(x, y))
    shapes += _times(samples, area)
    values = [sample.value for sample in samples]
    length = span((samples[-1].at_ms - samples[0].at_ms) / 1000)
    label = f"Lag over {length}: now {number(values[-1])}, at most {number(max(values))}"
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, label, Markup("").join(shapes))


def _times(samples: Sequence[Sample], area: _Area) -> Iterator[Markup]:
    y = area.top + area.height + 16
    first, last = samples[0].at_ms, samples[-1].at_ms
    places = ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    for share, anchor in places:
        when = datetime.fromtimestamp((first + share * (last - first)) / 1000, UTC)
        yield Markup('<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
            area.left + share * area.width, y, anchor, when.strftime("%H:%M:%S")
        )


def _parts(
    samples: Sequence[Sample], area: _Area, top: float
) -> Iterator[Sequence[tuple[float, float]]]:
    """Yield the points of the line, cut where nobody looked for long."""
    first, last = samples[0].at_ms, samples[-1].at_ms
    length = max(last - first, 1)
    steps = sorted(b.at_ms - a.at_ms for a, b in pairwise(samples))
    gap = GAP_FACTOR * steps[len(steps) // 2]
    part: list[tuple[float, float]] = []
    before = first
    for sample in samples:
        if sample.at_ms - before > gap and part:
            yield part
            part = []
        before = sample.at_ms
        x = area.left + (sample.at_ms - first) / length * area.width
        y = area.top + area.height - min(sample.value / top, 1) * area.height
        part.append((x, y))
    yield part


def _path(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    text = f"M{x:.1f} {y:.1f}" + "".join(f" L{x:.1f} {y:.1f}" for x, y in rest)
    return text if rest else f"{text} h0.1"


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `value` and 10."""
    step = 10.0
    while True:
        for factor in (1, 2, 5):
            if factor * step >= value:
                return factor * step
        step *= 10
