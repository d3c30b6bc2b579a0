"""A line plot with two logarithmic axes as SVG. Pure functions, standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 40, 50
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8c564b",
    "#000000",
    "#555555",
)


@dataclass(frozen=True)
class Line:
    name: str
    points: tuple[tuple[float, float], ...]  # both coordinates are greater than 0
    dashed: bool = False
    strong: bool = False


@dataclass(frozen=True)
class Plot:
    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]


def svg(plot: Plot) -> str:
    """The plot as SVG. Raises ValueError if there are no points, or if a coordinate is not positive."""
    points = [point for line in plot.lines for point in line.points]
    if not points:
        raise ValueError("a plot needs at least one point")
    if min(min(point) for point in points) <= 0:
        raise ValueError("coordinates on a logarithmic axis must be greater than 0")
    x_range = _span([x for x, _ in points])
    y_range = _span([y for _, y in points])
    y_low, y_high = 10 ** math.floor(math.log10(y_range[0])), 10 ** math.ceil(math.log10(y_range[1]))
    axes = _Axes(x_range, (y_low, y_high))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(plot.title)}</text>',
        *_grid(plot, axes),
        *(_line(line, _COLOURS[i % len(_COLOURS)], axes) for i, line in enumerate(plot.lines)),
        *_legend(plot.lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low / 2, high * 2)


class _Axes:
    def __init__(self, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.x_range = x_range
        self.y_range = y_range if y_range[0] < y_range[1] else (y_range[0] / 10, y_range[1] * 10)

    def x(self, value: float) -> float:
        return _LEFT + _share(value, self.x_range) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - _share(value, self.y_range) * (_HEIGHT - _TOP - _BOTTOM)


def _share(value: float, span: tuple[float, float]) -> float:
    return (math.log(value) - math.log(span[0])) / (math.log(span[1]) - math.log(span[0]))


def _grid(plot: Plot, axes: _Axes) -> list[str]:
    parts = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value, name in plot.x_ticks:
        x = axes.x(value)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(name)}</text>')
    for exponent in range(round(math.log10(axes.y_range[0])), round(math.log10(axes.y_range[1])) + 1):
        value = 10.0**exponent
        y = axes.y(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="{(_LEFT + right) / 2:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(plot.x_name)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {middle:.1f}) rotate(-90)" text-anchor="middle">{escape(plot.y_name)}</text>'
    )
    return parts


def _style(line: Line, colour: str) -> str:
    dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
    return f'stroke="{colour}" stroke-width="{3 if line.strong else 1.5}"{dashes} fill="none"'


def _line(line: Line, colour: str, axes: _Axes) -> str:
    places = [(axes.x(x), axes.y(y)) for x, y in sorted(line.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places)
    return f'<g><polyline points="{path}" {_style(line, colour)}/>{dots}</g>'


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    x = _WIDTH - _RIGHT + 14
    for i, line in enumerate(lines):
        y = _TOP + 10 + 20 * i
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" {_style(line, _COLOURS[i % len(_COLOURS)])}/>')
        parts.append(f'<text x="{x + 30}" y="{y + 4}">{escape(line.name)}</text>')
    return parts
