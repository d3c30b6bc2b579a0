"""The sections of measure.py share these settings, jobs, results and statistics. No file is opened here."""

from __future__ import annotations

import datetime
import json
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "bench/compare"), str(TREE / "bench")]

from summary import significant  # noqa: E402

SCHEMA, VERSION = "tutti-training", 1
MB = 1e6

# Student's t distribution: the 97.5 % quantile for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
# The quantile for 17 degrees of freedom, used for more as well. The interval is then slightly too wide.
_T_BEYOND = 2.110



@dataclass(frozen=True)
class Settings:
    tutti: str
    output_dir: Path
    seeds: int = 5
    rounds: int = 5
    batch: int = 64
    step_ms: float = 100.0
    step_source: str = "assumed"
    quick: bool = False
    limit_s: float = 7200.0
    cores: tuple[int, ...] = ()  # cores that this program may use
    torchrun: str = ""  # command; empty: not installed

    @property
    def steps(self) -> tuple[int, int]:
        """The number of steps of the section `speed`, and the number of first steps that are not counted."""
        return (6, 2) if self.quick else (60, 10)


@dataclass(frozen=True)
class Job:
    """One run, identified by its row, its sample (a seed or a round) and its command."""

    row: str
    sample: int
    command: tuple[str, ...]  # without --json FILE, which run_job() appends
    model: str = ""  # model that is trained; empty: the job trains no model

    def text(self) -> str:
        return shlex.join(self.command)

    def template(self) -> str:
        """The command, with SEED, NODES and BYTES in place of the values of these options, so that one line of a
        report can stand for many runs."""
        words = list(self.command)
        for option in {"--seed", "--nodes", "--bytes"} & set(words):
            words[words.index(option) + 1] = option[2:].upper()
        return shlex.join(words)


@dataclass(frozen=True)
class Figure:
    mean: float
    low: float
    high: float

    def text(self, digits: int | None = None) -> str:
        """Text with `digits` decimals, or with three significant digits."""

        def number(value: float) -> str:
            return significant(value) if digits is None else f"{value:.{digits}f}"

        spread = f"{number(self.low)}..{number(self.high)}" if math.isfinite(self.low) else "one run"
        return f"{number(self.mean)} ({spread})"


def interval(values: Iterable[float]) -> Figure | None:
    """Mean and 95 % t interval, which is infinite for one value. None if there are no values."""
    found = list(values)
    if not found:
        return None
    mean = statistics.fmean(found)
    if len(found) == 1:
        return Figure(mean, -math.inf, math.inf)
    quantile = _T[len(found) - 2] if len(found) - 2 < len(_T) else _T_BEYOND
    half = quantile * statistics.stdev(found) / math.sqrt(len(found))
    return Figure(mean, mean - half, mean + half)


def extremes(values: Iterable[float]) -> Figure | None:
    """Mean, minimum and maximum. None if there are no values."""
    found = list(values)
    return Figure(statistics.fmean(found), min(found), max(found)) if found else None


def text_of(figure: Figure | None, digits: int | None = None) -> str:
    return figure.text(digits) if figure else "-"


@dataclass
class Results:
    """The runs of one section, and the machine on which they ran."""

    section: str
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    machine: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)  # command lines of scripts/measure-training, oldest first
    runs: dict[tuple[str, int, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, job: Job, run: dict[str, Any]) -> None:
        self.runs[(job.row, job.sample, job.text())] = run

    def of(self, job: Job) -> dict[str, Any] | None:
        return self.runs.get((job.row, job.sample, job.text()))

    def only(self, jobs: Sequence[Job]) -> Results:
        """The results of these jobs only. A resumed file may contain other runs with other options."""
        found = {key: run for key in [(job.row, job.sample, job.text()) for job in jobs] if (run := self.runs.get(key))}
        return Results(self.section, self.date, self.machine, self.commands, found)

    def values(self, row: str, name: str) -> dict[int, Any]:
        """seed or round -> the value `name`, for the runs of the row that have it."""
        return {
            sample: run["values"][name]
            for (its_row, sample, _), run in self.runs.items()
            if its_row == row and run.get("values", {}).get(name) is not None
        }

    def to_json(self) -> str:
        """One run per line, so that versions of the file can be compared."""
        head = {"schema": SCHEMA, "version": VERSION, "section": self.section, "date": self.date}
        head |= {"machine": self.machine, "commands": self.commands}
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        runs = [json.dumps({"row": r, "sample": s, "command": c} | run) for (r, s, c), run in self.runs.items()]
        lines.append(' "runs": [\n  ' + ",\n  ".join(runs) + "\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> Results:
        """Raises ValueError if the file has another format."""
        data = json.loads(text)
        if data.get("schema") != SCHEMA or data.get("version") != VERSION:
            raise ValueError(f"not a file of {SCHEMA}, version {VERSION}")
        results = Results(data["section"], data["date"], data["machine"], data["commands"])
        for run in data["runs"]:
            results.runs[(run.pop("row"), run.pop("sample"), run.pop("command"))] = run
        return results


