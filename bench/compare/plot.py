"""The plot of the comparison: lines over two logarithmic axes, drawn by matplotlib."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plotting import PALE, Figure, new_figure, series_marker, series_style, svg_text  # noqa: E402


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
    return svg_text(figure_of(plot))


def figure_of(plot: Plot) -> Figure:
    points = [point for line in plot.lines for point in line.points]
    if not points:
        raise ValueError("a plot needs at least one point")
    if min(min(point) for point in points) <= 0:
        raise ValueError("coordinates on a logarithmic axis must be greater than 0")
    figure = new_figure(9, 5.4)
    axes = figure.add_subplot(xscale="log", yscale="log", title=plot.title, xlabel=plot.x_name, ylabel=plot.y_name)
    for i, line in enumerate(plot.lines):
        style = {"color": PALE, "linestyle": "--"} if line.dashed else series_style(i)
        x, y = zip(*sorted(line.points), strict=True)
        axes.plot(
            x,
            y,
            **style,
            label=line.name,
            marker="" if line.dashed and len(x) > 1 else series_marker(i),
            markersize=4.5,
            linewidth=2.8 if line.strong else 1.4,
            zorder=3 if line.strong else 2,
        )
    axes.set_xticks([value for value, _ in plot.x_ticks], [name for _, name in plot.x_ticks], rotation=30, ha="right")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    figure.legend(loc="outside right upper", handlelength=3)
    return figure
