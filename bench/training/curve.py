"""The section `curve` of measure.py: the scaling that `tutti sim` predicts, as a table and a plot with error bands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import MB, TREE, Job, Results, Settings

# The next modules are found because runs.py has extended sys.path.
from plotting import COLOURS, PALE, Figure, new_figure, printable, svg_text  # noqa: E402
from tables import markdown  # noqa: E402

# The predicted workload. The errors were measured for the same cost model: docs/results/2026-11-22-outside-judges.md.
CURVE_MODEL = "ResNet-50-like, 25.6 M parameters float32"
GRADIENT_BYTES, BUCKET_BYTES = 102_400_000, 25_000_000
GPUS_PER_MACHINE, MACHINES = 8, (1, 2, 4, 8, 16, 32, 64, 128)
# The part of a step that is the backward pass, which ends the step. The gradients become ready at a constant rate
# during the backward pass.
BACKWARD_SHARE = 2 / 3
# Errors relative to the measured time: the largest of all systems, and the largest of the systems that meet the goal.
ERRORS = (0.446, 0.25)
ERRORS_SOURCE = TREE / "docs/results/2026-11-22-outside-judges.md"




def read_sim(log: Path, job: Job) -> dict[str, Any]:
    data = json.loads(log.read_text(encoding="utf-8"))
    if data.get("schema") != "tutti-sim":
        raise ValueError("not a file of tutti sim")
    names = ("time_us", "busbw_GBps", "algorithm", "protocol", "model", "ranks", "parameters", "parameters_source")
    return {name: data[name] for name in names}


def buckets() -> list[int]:
    """The bytes of each bucket, in the order in which the buckets become ready."""
    whole, rest = divmod(GRADIENT_BYTES, BUCKET_BYTES)
    return [BUCKET_BYTES] * whole + ([rest] if rest else [])


def curve_row(gpus: int, size: int) -> str:
    return f"{gpus} GPUs, {size} B"


def curve_machines(settings: Settings) -> tuple[int, ...]:
    return MACHINES[:2] if settings.quick else MACHINES


def curve_jobs(settings: Settings) -> list[Job]:
    jobs = []
    for machines in curve_machines(settings):
        for size in (GRADIENT_BYTES, *sorted(set(buckets()), reverse=True)):
            words = f"sim all_reduce --shape dgx-h100 --nodes {machines} --bytes {size} --protocol best --model sweep"
            jobs.append(Job(curve_row(machines * GPUS_PER_MACHINE, size), 1, (settings.tutti, *words.split())))
    return jobs


def exposed_ms(times_ms: Sequence[float], step_ms: float) -> float:
    """How long a step waits for its buckets after the backward pass. The buckets are summed one after the other. The
    sum of a bucket starts when the bucket is ready and the previous sum is complete."""
    ready = step_ms * (1 - BACKWARD_SHARE)
    done = 0.0
    for size, time_ms in zip(buckets(), times_ms, strict=True):
        ready += step_ms * BACKWARD_SHARE * size / GRADIENT_BYTES
        done = max(done, ready) + time_ms
    return done - step_ms


@dataclass(frozen=True)
class Point:
    gpus: int
    whole_ms: float  # time of one call for all gradients
    exposed_ms: float
    efficiency: float  # %
    without_overlap: float  # %
    bands: tuple[tuple[float, float], ...]  # in %: low and high for each of ERRORS


def curve_points(results: Results, settings: Settings) -> list[Point]:
    """The points of the curve: one GPU, which does not communicate, and each number of GPUs with complete results."""
    points = [Point(1, 0.0, 0.0, 100.0, 100.0, ((100.0, 100.0),) * len(ERRORS))]
    for gpus in (machines * GPUS_PER_MACHINE for machines in curve_machines(settings)):
        times_ms = {
            size: time_us / 1e3
            for size in (GRADIENT_BYTES, *buckets())
            for time_us in results.values(curve_row(gpus, size), "time_us").values()
        }
        if set(times_ms) == {GRADIENT_BYTES, *buckets()}:
            points.append(curve_point(gpus, times_ms, settings.step_ms))
    return points


def curve_point(gpus: int, times_ms: dict[int, float], step_ms: float) -> Point:
    """One point. `times_ms`: bytes -> time of an all-reduce."""
    whole_ms = times_ms[GRADIENT_BYTES]

    def waits_ms(factor: float) -> float:
        return exposed_ms([factor * times_ms[size] for size in buckets()], step_ms)

    def efficiency(lost_ms: float) -> float:
        return 100 * step_ms / (step_ms + lost_ms)

    bands = tuple((efficiency(waits_ms(1 / (1 - e))), efficiency(waits_ms(1 / (1 + e)))) for e in ERRORS)
    return Point(gpus, whole_ms, waits_ms(1), efficiency(waits_ms(1)), efficiency(whole_ms), bands)


def curve_report(results: Results, settings: Settings) -> list[str]:
    wide, narrow = (f"{100 * error:g} %" for error in ERRORS)
    rows = []
    for point in curve_points(results, settings):
        row = curve_row(point.gpus, GRADIENT_BYTES)
        names = [results.values(row, name).get(1, "") for name in ("algorithm", "protocol")]
        figures = [f"{point.whole_ms:.3f}", f"{point.exposed_ms:.3f}", f"{point.efficiency:.2f}"]
        figures += [f"{low:.2f}..{high:.2f}" for low, high in reversed(point.bands)]
        rows.append([f"{point.gpus}", " ".join(names).strip() or "-", *figures, f"{point.without_overlap:.2f}"])
    head = ["GPUs", "all gradients in one call by", "ms", "exposed, ms a step", "efficiency, %"]
    head += [f"errors of {narrow}", f"errors of {wide}", "without overlap, %"]
    lines = [
        f"**This is a prediction; it was not run on GPUs.** {CURVE_MODEL}: {GRADIENT_BYTES / MB:g} MB of gradients per "
        f"step. The batch of each GPU is constant (weak scaling). A step takes {settings.step_ms:g} ms on one GPU "
        f"({settings.step_source}).",
    ]
    picture = f"![efficiency over GPUs, a prediction]({results.date}-training-curve.svg)"
    return [*lines, "", markdown(head, rows), "", picture, "", *curve_notes(results, settings)]


def curve_notes(results: Results, settings: Settings) -> list[str]:
    """The assumptions, and the meaning of the bands."""
    wide, narrow = (f"{100 * error:g} %" for error in ERRORS)
    values = [run["values"] for run in results.runs.values() if "values" in run]
    costs = sorted({", ".join(filter(None, (each["parameters"], each["parameters_source"]))) for each in values})
    source = os.path.relpath(ERRORS_SOURCE, settings.output_dir)
    return [
        f"- The all-reduce times are from `tutti sim`, for dgx-h100 machines with {GPUS_PER_MACHINE} GPUs each, so "
        "there are no points for 2 and 4 GPUs. They are for the fastest algorithm and protocol, with the model "
        f"`sweep`, to which the errors below apply. Costs: {'; '.join(costs) or 'none'}.",
        f"- Buckets of {BUCKET_BYTES / MB:g} MB become ready at a constant rate during the backward pass, which is the "
        "last two thirds of the step, and are summed one after the other. Exposed is the time from the end of the "
        "backward pass to the last sum. Efficiency is the time of a step without communication divided by the time "
        "with it.",
        "- The bands show the efficiency if the prediction of every all-reduce was wrong by that part of the measured "
        f"time, in either direction. {narrow} is the largest error of the systems that met the goal of the cost model, "
        f"{wide} that of the system that missed it. The medians of single systems are 0.7 to 13 %. Two published "
        f"values for 1,024 machines were missed by 4.1 and 6.5 % ([outside judges]({source})). All these errors are "
        "with costs fitted to the system. The costs here are not fitted to a system, so a band may be too narrow.",
        "- Not included: computation that is slowed down by communication, late ranks, congestion, loading of data.",
    ]


# ---- The plot

_BLUE, _RED = COLOURS[:2]
_BAND_COLOURS = ("#dbe9f3", "#a9cde4")  # in the order of ERRORS


def curve_svg(results: Results, settings: Settings) -> str:
    return svg_text(curve_figure(results, settings))


def curve_figure(results: Results, settings: Settings) -> Figure:
    points = curve_points(results, settings)
    gpus = [point.gpus for point in points]
    figure = new_figure(9, 5)
    axes = figure.add_subplot(xlabel="GPUs", ylabel="efficiency, %")
    figure.suptitle(
        "Prediction, not measured: efficiency on dgx-h100 machines by tutti sim", x=0.01, ha="left", weight="bold"
    )
    workload = printable(f"{CURVE_MODEL}; a step of {settings.step_ms:g} ms ({settings.step_source})", 120)
    axes.set_title(workload, fontsize=10, weight="normal", color=PALE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(count) for count in gpus])
    axes.minorticks_off()
    for i, (error, colour) in enumerate(zip(ERRORS, _BAND_COLOURS, strict=True)):
        low, high = zip(*(point.bands[i] for point in points), strict=True)
        axes.fill_between(gpus, low, high, color=colour, label=f"with overlap, all-reduce off by {100 * error:g} %")
    axes.plot(gpus, [point.efficiency for point in points], color=_BLUE, marker="o", clip_on=False, label="with overlap")
    without = [point.without_overlap for point in points]
    axes.plot(gpus, without, color=_RED, linestyle="--", marker="s", clip_on=False, label="without overlap")
    axes.set_ylim(top=100)
    axes.legend(loc="lower left")
    return figure
