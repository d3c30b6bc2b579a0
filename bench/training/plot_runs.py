"""Plots training runs from their logs: loss, throughput, and the time of a step. scripts/plot-training calls it.

The figure has a panel for each kind of data that the logs have:
  loss        loss over steps, with a line for each log. With more than MANY_STEPS steps the line is smoothed, and a
              faint band behind it shows the range of the losses. The line has a gap where no loss is known. Dots are
              test accuracies, on the right axis
  throughput  samples/s over ranks, with a line for each strategy (for each model and precision of a strategy, if the
              logs have several), and a dotted line for ideal scaling. Drawn only if the runs that have a throughput
              have different numbers of ranks
  time        the mean time of a step in ms, as a stacked bar for each log. The first step is left out, because it
              warms up
Exit status: 0; 1 if a log cannot be used or the plot cannot be written; 2 if the command line is wrong, or if
matplotlib is missing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plotting import FORMATS, PALE, Figure, legend_rows, new_figure, printable, save, series_style  # noqa: E402
from run_labels import counted, run_labels  # noqa: E402
from run_log import NO_VALUE, BadLog, RunLog, Step, read_log  # noqa: E402

MOST_LOGS = 64
MANY_STEPS = 100  # with more steps than this, lines are smoothed
MOST_POINTS = 400  # maximum number of points of a line; if a run has more steps, a point stands for several of them
NO_DATA = "no log has a loss, an accuracy or the times of a second step"

_WIDTH_IN, _TITLE_IN, _LEGEND_ROW_IN, _BAR_IN = 9.0, 0.35, 0.2, 0.3
_LABEL = 60  # maximum length of a label, in characters
_LOGARITHMIC = 100  # the axis of the loss is logarithmic if the losses differ by a larger factor
_MOST_DECADES = 12  # maximum number of decades that a logarithmic axis shows

# Colours that colour-blind readers can distinguish as well. The second and the third are almost equally dark.
_PARTS = (
    ("loading data", "#e69f00"),
    ("computation", "#0072b2"),
    ("waiting for communication", "#d55e00"),
    ("rest", "#c3ccd1"),
)


# ---- Loss


@dataclass(frozen=True)
class LossLine:
    """The losses of a run as points, each of which stands for one step or for several consecutive ones."""

    steps: list[float]
    low: list[float]
    high: list[float]
    shown: list[float]  # the mean, smoothed if there are more than MANY_STEPS steps
    smooth: bool


def loss_line(log: RunLog) -> LossLine:
    count = min(len(log.steps), MOST_POINTS)
    parts = [log.steps[len(log.steps) * i // count : len(log.steps) * (i + 1) // count] for i in range(count)]
    known = [[step.loss for step in part if not math.isnan(step.loss)] for part in parts]
    means = [statistics.fmean(losses) if losses else NO_VALUE for losses in known]
    smooth = len(log.steps) > MANY_STEPS
    return LossLine(
        steps=[statistics.fmean(step.step for step in part) for part in parts],
        low=[min(losses, default=NO_VALUE) for losses in known],
        high=[max(losses, default=NO_VALUE) for losses in known],
        shown=_smoothed(means) if smooth else means,
        smooth=smooth,
    )


def _smoothed(values: Sequence[float]) -> list[float]:
    """Replaces each value by the mean of a window around it. The window is narrower near the ends, so that the first
    and the last value do not change. NO_VALUE stays as it is, and is left out of the means."""
    widest = max(2, len(values) // 40)
    result = []
    for i, value in enumerate(values):
        half = min(widest, i, len(values) - 1 - i)
        known = [each for each in values[i - half : i + half + 1] if not math.isnan(each)]
        result.append(value if math.isnan(value) else statistics.fmean(known))
    return result


def loss_label(log: RunLog, label: str) -> str:
    gaps = sum(math.isnan(step.loss) for step in log.steps)
    return f"{label} ({counted(gaps, 'step')} without a loss)" if gaps else label


def _draw_loss(axes: Any, logs: Sequence[RunLog], labels: Sequence[str]) -> None:
    losses = [step.loss for log in logs for step in log.steps if not math.isnan(step.loss)]
    axes.set(title="Loss" if losses else "Test accuracy", xlabel="step", ylabel="loss" if losses else "")
    for i, (log, label) in enumerate(zip(logs, labels, strict=True)):
        line, style = loss_line(log), series_style(i)
        if line.smooth:
            axes.fill_between(line.steps, line.low, line.high, color=style["color"], alpha=0.15, linewidth=0)
        (drawn,) = axes.plot(line.steps, line.shown, **style, linewidth=1.6, label=label)
        alone = [k for k in range(len(line.steps)) if _is_alone(line.shown, k)]
        if alone:
            drawn.set(marker=".", markevery=alone)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if losses:
        _scale_loss(axes, min(losses), max(losses))
    epochs = [(epoch, i) for i, log in enumerate(logs) for epoch in log.epochs if not math.isnan(epoch.test_accuracy)]
    if epochs:
        if not losses:
            axes.yaxis.set_visible(False)
        _draw_accuracies(axes.twinx(), epochs)


def _is_alone(values: Sequence[float], at: int) -> bool:
    """Whether a point has no neighbour, so that no line is drawn to it."""
    around = [values[k] for k in (at - 1, at + 1) if 0 <= k < len(values)]
    return not math.isnan(values[at]) and all(math.isnan(value) for value in around)


def _scale_loss(axes: Any, low: float, high: float) -> None:
    if low > 0 and high > _LOGARITHMIC * low:
        axes.set_yscale("log")
        axes.set_ylabel("loss (logarithmic)")
        axes.set_ylim(bottom=max(0.9 * low, high / 10**_MOST_DECADES))


def _draw_accuracies(axes: Any, epochs: Sequence[tuple[Any, int]]) -> None:
    axes.set_gid("accuracy")
    axes.set_ylabel("test accuracy, % (dots)")
    axes.grid(visible=False)
    axes.spines["right"].set_visible(True)
    for epoch, i in epochs:
        color = series_style(i)["color"]
        axes.plot(epoch.step, 100 * epoch.test_accuracy, "o", color=color, markersize=6, markeredgecolor="white")


# ---- Throughput


@dataclass
class Series:
    label: str
    index: int  # index of the first log of the series; it determines the colour
    rates: dict[int, list[float]] = field(default_factory=dict)  # number of ranks -> samples/s of each run

    def means(self) -> list[tuple[int, float]]:
        return [(ranks, statistics.fmean(rates)) for ranks, rates in sorted(self.rates.items())]


def series_of(logs: Sequence[RunLog]) -> list[Series]:
    """The throughputs, divided by strategy; also by model and precision if these differ."""
    models, precisions = ({getattr(log, name) for log in logs} for name in ("model", "precision"))
    found: dict[str, Series] = {}
    for i, log in enumerate(logs):
        if log.samples_per_s > 0:
            names = [log.strategy or "measured"]
            names += [log.model] if len(models) > 1 else []
            names += [log.precision] if len(precisions) > 1 else []
            series = found.setdefault(", ".join(names), Series(", ".join(names), i))
            series.rates.setdefault(log.ranks, []).append(log.samples_per_s)
    return list(found.values())


@dataclass(frozen=True)
class Ideal:
    """Ideal scaling: every rank is as fast as a rank of the run with the fewest ranks. If several series have that
    number of ranks, the fastest one counts."""

    least_ranks: int
    most_ranks: int
    rate_per_rank: float  # samples/s


def ideal_of(series: Sequence[Series]) -> Ideal | None:
    """None if the runs do not have different numbers of ranks."""
    means = [mean for each in series for mean in each.means()]
    counts = [ranks for ranks, _ in means]
    if len(set(counts)) < 2:
        return None
    rate = max(rate / ranks for ranks, rate in means if ranks == min(counts))
    return Ideal(min(counts), max(counts), rate)


def _draw_throughput(axes: Any, series: Sequence[Series], ideal: Ideal) -> None:
    axes.set(title="Throughput", xlabel="ranks", ylabel="samples/s")
    for each in series:
        ranks, rates = zip(*each.means(), strict=True)
        axes.plot(ranks, rates, **series_style(each.index), marker="o", label=printable(each.label, _LABEL))
    ends = [ideal.least_ranks, ideal.most_ranks]
    label = f"ideal, from {counted(ideal.least_ranks, 'rank')}"
    axes.plot(ends, [ideal.rate_per_rank * ranks for ranks in ends], color=PALE, linestyle=":", label=label, zorder=1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


# ---- Time of a step


def mean_step_ms(log: RunLog) -> list[float] | None:
    """The mean time in ms of each of _PARTS in all steps except the first one. None if no other step has times."""
    steps = [_parts_ms(step) for step in log.steps[1:] if not math.isnan(step.step_s)]
    means = [statistics.fmean(times) for times in zip(*steps, strict=True)]
    return means if sum(means) > 0 else None


def _parts_ms(step: Step) -> list[float]:
    known = [0.0 if math.isnan(value) else value for value in (step.load_s, step.compute_s, step.exposed_s)]
    return [1e3 * value for value in (*known, max(step.step_s - sum(known), 0.0))]


def _draw_time(axes: Any, bars: Sequence[tuple[str, list[float]]]) -> None:
    axes.set(title="Where the time of a step goes", xlabel="ms, mean of all steps except the first")
    axes.grid(visible=False, axis="y")
    rows = range(len(bars))
    before = [0.0] * len(bars)
    for part, (name, colour) in enumerate(_PARTS):
        times = [parts[part] for _, parts in bars]
        axes.barh(rows, times, left=before, height=0.6, color=colour, label=name)
        before = [start + time for start, time in zip(before, times, strict=True)]
    for row, end in zip(rows, before, strict=True):
        axes.annotate(f"{end:.3g} ms", (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(rows, [label for label, _ in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.4, -0.6)  # the first log is at the top
    axes.set_xlim(0, 1.12 * max(before))  # space for the text behind the bars


# ---- The whole figure


@dataclass(frozen=True)
class Panel:
    name: str
    height_in: float  # without the legend
    legend: Sequence[str]
    draw: Callable[[Any], None]  # draws the panel into the axes that it receives


def panels_of(logs: Sequence[RunLog], labels: Sequence[str]) -> list[Panel]:
    """The panels that have data."""
    found = []
    has_loss = any(not math.isnan(step.loss) for log in logs for step in log.steps)
    if has_loss or any(not math.isnan(epoch.test_accuracy) for log in logs for epoch in log.epochs):
        names = [loss_label(log, label) for log, label in zip(logs, labels, strict=True)]
        found.append(Panel("loss", 3.2, names, partial(_draw_loss, logs=logs, labels=names)))
    series = series_of(logs)
    ideal = ideal_of(series)
    if ideal is not None:
        names = [*(each.label for each in series), "ideal"]
        found.append(Panel("throughput", 2.8, names, partial(_draw_throughput, series=series, ideal=ideal)))
    bars = [(label, parts) for log, label in zip(logs, labels, strict=True) if (parts := mean_step_ms(log))]
    if bars:
        names = [name for name, _ in _PARTS]
        found.append(Panel("time", 0.8 + _BAR_IN * len(bars), names, partial(_draw_time, bars=bars)))
    return found


def figure_of(logs: Sequence[RunLog]) -> Figure:
    """Raises BadLog if the logs have no data for any panel."""
    shared, labels = run_labels(logs)
    panels = panels_of(logs, [printable(label, _LABEL) for label in labels])
    if not panels:
        raise BadLog(f"{NO_DATA}: let a run do two steps first")
    legends = [legend_rows(panel.legend) for panel in panels]
    heights = [panel.height_in + _LEGEND_ROW_IN * rows for panel, (rows, _) in zip(panels, legends, strict=True)]
    figure = new_figure(_WIDTH_IN, sum(heights) + _TITLE_IN)
    title = f"{counted(len(logs), 'training run')}: {shared}"
    figure.suptitle(printable(title, 90), x=0.01, ha="left", fontsize=10, weight="bold")
    parts = figure.subfigures(len(panels), height_ratios=heights, squeeze=False)[:, 0]
    for part, panel, (_, columns) in zip(parts, panels, legends, strict=True):
        axes = part.add_subplot(gid=panel.name)
        panel.draw(axes)
        part.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    try:
        for path in options.logs:
            if options.output.exists() and path.exists() and path.samefile(options.output):
                raise BadLog(f"the plot would replace the log {path}: name another file for it")
        figure = figure_of([_read(path) for path in options.logs])
        _write(figure, options.output)
    except BadLog as error:
        print(f"plot-training: {error}", file=sys.stderr)
        return 1
    return 0


def _read(path: Path) -> RunLog:
    try:
        return read_log(path)
    except OSError as error:
        raise BadLog(f"cannot read {path}: {error.strerror}") from None


def _write(figure: Figure, path: Path) -> None:
    try:
        save(figure, path)
    except OSError as error:
        raise BadLog(f"cannot write {path}: {error.strerror}") from None


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/plot-training", description="Plot training runs from their logs.")
    parser.add_argument("logs", type=Path, nargs="+", help="files that `tutti train MODEL --json FILE` wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help=f"the plot; ends in {', '.join(FORMATS)}")
    options = parser.parse_args(arguments)
    if len(options.logs) > MOST_LOGS:
        parser.error(f"there are {len(options.logs)} logs to draw: name 1 to {MOST_LOGS}")
    if options.output.suffix not in FORMATS:
        parser.error(f"{options.output}: name a file that ends in {', '.join(FORMATS)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
