"""The sections of the measurements of `tutti train`: the runs of each section, the values from their logs, its report.

Nothing here starts a process or writes a file; measure.py does that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curve import curve_jobs, curve_report, curve_svg, read_sim
from runs import MB, Figure, Job, Results, Settings, extremes, interval, text_of

from tables import markdown  # noqa: E402

PARAMETERS = {"cnn": 1_199_882, "gpt": 867_328, "gpt, larger": 4_886_784}  # to check that a log belongs to the model

ACCURACY_GOAL, ACCURACY_MARGIN = 90.0, 0.5  # in %, and in percentage points
RANKS = (1, 2, 4)
BATCHES = (64, 256, 1024, 4096)
BATCH_SEEDS, MEMORY_ROUNDS = 3, 3  # maximum number of seeds in the section `batch`, and of rounds in `memory`


@dataclass(frozen=True)
class Section:
    title: str
    jobs: Callable[[Settings], list[Job]]
    read: Callable[[Path, Job], dict[str, Any]]
    needs: tuple[str, ...]  # names of the required values
    report: Callable[[Results, Settings], list[str]]  # lines of Markdown
    picture: Callable[[Results, Settings], str] | None = None  # SVG


# ---- Reading a log


def records_of(log: Path, job: Job) -> list[dict[str, Any]]:
    """The records of a training. Raises ValueError if the log is incomplete or belongs to another model."""
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    kinds = [record.get("record") for record in records]
    if "run" not in kinds or kinds[-1] != "result":
        raise ValueError("the log lacks the record `run` at its beginning, or `result` at its end")
    parameters = records[kinds.index("run")].get("parameters")
    if parameters != PARAMETERS[job.model]:
        raise ValueError(f"{job.model} has {parameters} parameters in the log, not {PARAMETERS[job.model]}")
    return records


def read_result(log: Path, job: Job) -> dict[str, Any]:
    """The values of the last record of the log, and as `epochs` the accuracies of the tests. Accuracies are in %."""
    records = records_of(log, job)
    values = {name: value for name, value in records[-1].items() if name != "record"}
    if values.get("test_accuracy") is not None:
        values["test_accuracy"] = percent(values["test_accuracy"])
    epochs = [record.get("test_accuracy") for record in records if record.get("record") == "epoch"]
    return values | {"epochs": [percent(each) for each in epochs if each is not None]}


def read_steps(log: Path, job: Job) -> dict[str, Any]:
    """Like read_result(), with the times of each step. Raises ValueError if the log does not contain all steps."""
    steps = [record for record in records_of(log, job) if record.get("record") == "step"]
    wanted = int(job.command[job.command.index("--steps") + 1])
    if len(steps) != wanted:
        raise ValueError(f"{len(steps)} steps are in the log, not {wanted}")
    names = [name for name in ("load_s", "compute_s", "exposed_s", "step_s") if all(name in step for step in steps)]
    return read_result(log, job) | {name: [float(f"{step[name]:.5g}") for step in steps] for name in names}


def percent(accuracy: float) -> float:
    """Converts a fraction of 0..1 to percent. Raises ValueError if it is outside."""
    if not 0 <= accuracy <= 1:
        raise ValueError(f"an accuracy of {accuracy} is not within 0 and 1")
    return 100 * accuracy


# ---- accuracy, batch


def train(settings: Settings, model: str, ranks: int, *options: object) -> tuple[str, ...]:
    return (settings.tutti, "train", model, "--ranks", str(ranks), *(str(option) for option in options))


def length(settings: Settings, epochs: int) -> tuple[object, ...]:
    return ("--steps", 20, "--data", "generated") if settings.quick else ("--epochs", epochs)


def ranks_text(ranks: int) -> str:
    return "1 process" if ranks == 1 else f"{ranks} ranks"


def accuracy_jobs(settings: Settings) -> list[Job]:
    return [
        Job(ranks_text(ranks), seed, train(settings, "cnn", ranks, *length(settings, 3), "--seed", seed), "cnn")
        for seed in range(1, settings.seeds + 1)
        for ranks in RANKS
    ]


def differences(first: dict[int, float], second: dict[int, float]) -> list[float]:
    """second - first, for each seed that both have."""
    return [second[sample] - first[sample] for sample in sorted(first.keys() & second.keys())]


def yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def accuracy_report(results: Results, _: Settings) -> list[str]:
    single = results.values(ranks_text(1), "test_accuracy")
    rows = []
    for ranks in RANKS:
        found = results.values(ranks_text(ranks), "test_accuracy")
        mean, apart = interval(found.values()), interval(differences(single, found))
        goals = [yes(mean.mean >= ACCURACY_GOAL) if mean else "-", ""]
        if ranks > 1:
            goals[1] = yes(abs(apart.mean) <= ACCURACY_MARGIN) if apart else "-"
        lowest = f"{min(found.values()):.2f}" if found else "-"
        apart_text = text_of(apart, 2) if ranks > 1 else ""
        rows.append([ranks_text(ranks), str(len(found)), text_of(mean, 2), lowest, apart_text, *goals])
    head = ["", "seeds", "test accuracy, %", "lowest, %", "difference to 1 process, points"]
    head += [f">= {ACCURACY_GOAL:g} %", f"within {ACCURACY_MARGIN:g} points"]
    said = "Means over seeds, with their 95 % t intervals in brackets. Differences are between runs of the same seed. "
    return [said + "The last columns evaluate the means.", "", markdown(head, rows)]


def batch_row(batch: int, scaled: bool) -> str:
    return f"{batch}, lr scaled" if scaled else f"{batch}"


def batch_jobs(settings: Settings) -> list[Job]:
    jobs = []
    for seed in range(1, min(settings.seeds, BATCH_SEEDS) + 1):
        for batch in BATCHES:
            for scaled in (False, True):
                flag = ("--scale-lr",) if scaled else ()
                options = (*length(settings, 2), "--batch", batch, *flag, "--seed", seed)
                jobs.append(Job(batch_row(batch, scaled), seed, train(settings, "cnn", 2, *options), "cnn"))
    return jobs


def batch_report(results: Results, _: Settings) -> list[str]:
    rows = []
    for batch in BATCHES:
        plain, scaled = (results.values(batch_row(batch, flag), "test_accuracy") for flag in (False, True))
        figures = (interval(plain.values()), interval(scaled.values()), interval(differences(plain, scaled)))
        rows.append([str(batch), f"{len(plain)}, {len(scaled)}", *(text_of(figure, 2) for figure in figures)])
    head = ["effective batch", "seeds", "test accuracy, %: same lr", "lr scaled with the batch", "difference, points"]
    said = "Means over seeds, with their 95 % t intervals in brackets. The effective batch is the sum of both ranks."
    return [said, "", markdown(head, rows)]


# ---- speed

_OVERLAP, _PLAIN, _ONE, _TWO = (
    "2 ranks x 1 thread",
    "the same, no overlap",
    "1 process, 1 thread",
    "1 process, 2 threads",
)
_TORCH = "PyTorch DDP over Gloo, 2 ranks x 1 thread"
_VARIANTS = (_OVERLAP, _PLAIN, _ONE, _TWO, _TORCH)
_SPEED_MODELS = ("cnn", "gpt")


def speed_jobs(settings: Settings) -> list[Job]:
    """The jobs of the section `speed`. The variants take turns to run first in a round."""
    steps = settings.steps[0]
    common = ("--batch", settings.batch, "--steps", steps, "--data", "generated", "--optimizer", "sgd")
    pinned = ("taskset", "-c", ",".join(map(str, settings.cores[:2]))) if len(settings.cores) > 2 else ()
    jobs = []
    for number in range(1, settings.rounds + 1):
        for model in _SPEED_MODELS:
            commands = {
                _OVERLAP: train(settings, model, 2, *common, "--threads", 1),
                _PLAIN: train(settings, model, 2, *common, "--threads", 1, "--no-overlap"),
                _ONE: train(settings, model, 1, *common, "--threads", 1),
                _TWO: train(settings, model, 1, *common, "--threads", 2),
            }
            if settings.torchrun:
                torch = f"--standalone --nproc-per-node 2 bench/training/torch_ddp.py {model} --threads 1"
                torch += f" --batch {settings.batch} --steps {steps}"
                commands[_TORCH] = (settings.torchrun, *torch.split())
            names = list(commands)
            first = (number - 1) % len(names)
            for name in names[first:] + names[:first]:
                jobs.append(Job(f"{model}: {name}", number, (*pinned, *commands[name]), model))
    return jobs


def steps_per_s(results: Results, row: str, settings: Settings) -> dict[int, float]:
    """round -> steps per second, from the median step of the run."""
    found = results.values(row, "step_s")
    return {number: 1 / statistics.median(each[settings.steps[1] :]) for number, each in found.items()}


def exposed(results: Results, row: str, settings: Settings) -> tuple[Figure | None, Figure | None]:
    """Exposed communication of a step, in ms and in % of the step. For each run, either number is the median over its
    counted steps, so the two may be from different steps."""
    left_out = settings.steps[1]
    times, shares = [], []
    steps = results.values(row, "step_s")
    for number, found in results.values(row, "exposed_s").items():
        pairs = list(zip(found, steps[number], strict=True))[left_out:]
        times.append(1e3 * statistics.median(waits_s for waits_s, _ in pairs))
        shares.append(100 * statistics.median(waits_s / step_s for waits_s, step_s in pairs))
    return extremes(times), extremes(shares)


def speed_report(results: Results, settings: Settings) -> list[str]:
    steps, left_out = settings.steps
    lines = [
        f"Batch {settings.batch} of all ranks together, {steps} steps; the first {left_out} steps are not counted. The "
        "speed of a run is that of its median step, and its exposed time and share are medians over its steps. The "
        "table has means over the rounds, with minimum and maximum in brackets. Ratios are between two runs of the same round; above 1, the row is faster. Exposed is the time that "
        "a step on rank 0 waits for communication. All train generated data by SGD with momentum, and each library "
        "uses its default buckets: those of PyTorch have 1 MiB (the first one) and 25 MiB, so there are two for each "
        "model.",
    ]
    if not settings.torchrun:
        lines += ["", "PyTorch was not measured: there is no build/python (`scripts/setup --python` creates it)."]
    for model in _SPEED_MODELS:
        speeds = {name: steps_per_s(results, f"{model}: {name}", settings) for name in _VARIANTS}
        rows = []
        for name, found in speeds.items():
            if name == _TORCH and not settings.torchrun:
                continue
            row = [name, text_of(extremes(found.values()))]
            for other in (_ONE, _PLAIN, _TORCH):
                ratios = [found[n] / speeds[other][n] for n in sorted(found.keys() & speeds[other].keys())]
                row.append("" if name == other else text_of(extremes(ratios)))
            rows.append([*row, *(text_of(figure) for figure in exposed(results, f"{model}: {name}", settings))])
        head = [model, "steps/s", "ratio to 1 process, 1 thread", "to no overlap", "to PyTorch"]
        lines += ["", markdown([*head, "exposed, ms a step", "% of the step"], rows)]
    return lines


# ---- memory

_STRATEGIES: dict[str, tuple[str, ...]] = {name: ("--strategy", name) for name in ("ddp", "zero1", "zero2", "zero3")}
_STRATEGIES["mics, groups of 2"] = ("--strategy", "mics", "--group", "2")


def memory_jobs(settings: Settings) -> list[Job]:
    # Large enough that parameters need more memory than activations. There are several layers, so that the layers that
    # zero3 holds completely at one time are a small part of the model.
    options = ("--width", 256, "--blocks", 6, "--batch", 8, "--steps", 5, "--data", "generated")
    return [
        Job(name, number, train(settings, "gpt", 4, *words, *options), "gpt, larger")
        for number in range(1, min(settings.rounds, MEMORY_ROUNDS) + 1)
        for name, words in _STRATEGIES.items()
    ]


def memory_report(results: Results, _: Settings) -> list[str]:
    rows = []
    ddp = results.values("ddp", "peak_bytes")
    for name in _STRATEGIES:
        peaks = results.values(name, "peak_bytes")
        peak = extremes(value / MB for value in peaks.values())
        less = extremes((ddp[n] - peaks[n]) / MB for n in sorted(ddp.keys() & peaks.keys()))
        state = extremes(value / MB for value in results.values(name, "state_bytes").values())
        rows.append([name, text_of(peak, 2), text_of(less, 2) if name != "ddp" else "", text_of(state, 3)])
    said = "Means over the rounds, with minimum and maximum in brackets, in 10^6 bytes. Peak is `peak_bytes` of the "
    said += (
        "rank with the most; it includes data, activations and buffers. State is calculated from the sizes of a rank's "
    )
    said += "parameters, gradients and optimizer state."
    return [said, "", markdown(["strategy", "peak, MB", "less than ddp, MB", "state by arithmetic, MB"], rows)]


# ---- All sections

SECTIONS = {
    "accuracy": Section("accuracy", accuracy_jobs, read_result, ("test_accuracy",), accuracy_report),
    "batch": Section("accuracy by batch", batch_jobs, read_result, ("test_accuracy",), batch_report),
    "speed": Section("speed", speed_jobs, read_steps, ("step_s",), speed_report),
    "memory": Section("memory", memory_jobs, read_result, ("peak_bytes", "state_bytes"), memory_report),
    "curve": Section("scaling, a prediction", curve_jobs, read_sim, ("time_us",), curve_report, curve_svg),
}
