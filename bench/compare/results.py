"""The results of a run as values, and their JSON format. compare.py fills one Results, and report.py reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from summary import Summary, headline, summarize

SCHEMA = "tutti-compare"
VERSION = 1
_TIMES = ("median_us", "slowest_median_us", "mean_us", "slowest_mean_us", "loop_us")


@dataclass
class Cell:
    """The samples of one variant for one collective, number of ranks and size."""

    section: str
    collective: str
    ranks: int
    bytes: int
    variant: str
    measure: str = "time"
    load: str = ""  # Load.name of the case
    times: dict[str, list[float]] = field(default_factory=dict)  # name of a time or CPU load -> one value per trial
    wrong: int = 0  # number of wrong elements
    note: str = ""  # the reason why samples are missing; empty: none are

    def add(self, record: dict[str, Any]) -> None:
        """Adds one line of the results of a driver."""
        names = _TIMES if self.measure == "time" else ("cpu_percent", "most_cpu_percent")
        for name in names:
            self.times.setdefault(name, []).append(float(f"{record[name]:.5g}"))
        self.wrong += int(record.get("wrong", 0))

    def summary(self, cores: int) -> Summary | None:
        """The summary of the value that is reported. None if nothing was measured, or if an element was wrong: the time
        of a wrong result is meaningless."""
        if self.wrong:
            return None
        name = headline(self.collective, self.ranks, cores, bool(self.load)) if self.measure == "time" else "cpu_percent"
        return summarize(self.times.get(name, []))


Key = tuple[str, str, int, int, str, str, str]


@dataclass
class Results:
    settings: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)  # "setting/name" -> description
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[Key, Cell] = field(default_factory=dict)
    references: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # (ranks, bytes) -> measured times, us

    @property
    def cores(self) -> int:
        return int(self.machine.get("cores", 1))

    def cell(
        self, section: str, collective: str, ranks: int, size: int, variant: str, measure: str = "time", load: str = ""
    ) -> Cell:
        """The cell with this key. It is created if it does not exist."""
        key = (section, collective, ranks, size, variant, measure, load)
        if key not in self.cells:
            self.cells[key] = Cell(section, collective, ranks, size, variant, measure, load)
        return self.cells[key]

    def of(self, section: str) -> list[Cell]:
        return [cell for cell in self.cells.values() if cell.section == section]

    def reference(self, ranks: int, size: int) -> float | None:
        """The shortest time of all measurements, because other programs disturbed it least. None if
        there is no measurement."""
        return min(self.references.get((ranks, size), []), default=None)

    def merge(self, other: Results) -> None:
        """Adds the results that another process has measured for this run."""
        self.variants.update(other.variants)
        for key, cell in other.cells.items():
            mine = self.cell(*key)
            mine.wrong += cell.wrong
            mine.note = cell.note or mine.note
            for name, values in cell.times.items():
                mine.times.setdefault(name, []).extend(values)
        for place, values in other.references.items():
            self.references.setdefault(place, []).extend(values)

    def to_json(self) -> str:
        """One cell per line, so that versions of the file can be compared."""
        head = {
            "schema": SCHEMA,
            "version": VERSION,
            "settings": self.settings,
            "machine": self.machine,
            "versions": self.versions,
            "variants": self.variants,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        references = [
            json.dumps({"ranks": r, "bytes": b, "reference_us": values}) for (r, b), values in self.references.items()
        ]
        cells = [json.dumps(vars(cell)) for cell in self.cells.values()]
        for name, rows in (("references", references), ("cells", cells)):
            lines.append(f' "{name}": [\n  ' + ",\n  ".join(rows) + "\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> Results:
        """Raises ValueError if the file is not JSON, or has another schema or version."""
        data = json.loads(text)
        if data.get("schema") != SCHEMA or data.get("version") != VERSION:
            raise ValueError(f"not a file of {SCHEMA}, version {VERSION}")
        results = Results(data["settings"], data["machine"], data["variants"], data["versions"])
        for row in data["references"]:
            results.references[(row["ranks"], row["bytes"])] = row["reference_us"]
        for row in data["cells"]:
            cell = Cell(**row)
            key = (cell.section, cell.collective, cell.ranks, cell.bytes, cell.variant, cell.measure, cell.load)
            results.cells[key] = cell
        return results


def write_whole(path: Path, text: str) -> None:
    """Replaces the file atomically, so that an interrupted run leaves either the old or the new one."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
