"""One round of a run: executes each case with each variant, and measures the references. Fills a Results."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import Case, Settings, all_cases, memory_needed, size_text
from jobs import clean_environment, run_job
from load import why_no_quota
from peers import LAUNCHERS, MAKERS, Variant, variants_of
from results import Cell, Results

_REFERENCE_LIMIT_S = 120.0
_SPARE_BYTES = 2 << 30  # memory of the machine that is left to other programs
_CUT_OFF = "cut off"  # cells with a note that begins with this are not tried again


class Run:
    """The data that does not change between rounds."""

    def __init__(self, settings: Settings, bin_dir: Path, tree: Path) -> None:
        self.settings = settings
        self.bin_dir = bin_dir
        self._tree = tree
        self.cores = len(os.sched_getaffinity(0))
        self.libraries = [name for name in MAKERS if self._is_installed(name)]

    def _is_installed(self, library: str) -> bool:
        launcher = LAUNCHERS.get(library)
        reachable = launcher is None or shutil.which(launcher) is not None
        return reachable and (self.bin_dir / f"compare_{library}").exists()

    def run_round(self, results: Results, number: int) -> None:
        cases = all_cases(self.settings, self.cores)
        for case in cases:
            if case.place == "veth" and "MACHINES" not in os.environ:
                continue  # _run_between_machines() runs these cases in another process
            if case.load.quota_percent and (why := why_no_quota()):
                _say(f"{case.section}: {case.load.name}, {case.ranks} ranks: skipped: {why}")
                continue
            for variant in self._in_turn(case, number):
                results.variants.setdefault(f"{variant.place}/{variant.name}", variant.what)
                self._run_case(results, variant, case, number)
            if case.section in ("memory", "tuned") or case.section == "many":
                self._measure_reference(results, case)
        if "veth" in self.settings.sections and "MACHINES" not in os.environ:
            self._run_between_machines(results, number)

    def _in_turn(self, case: Case, number: int) -> list[Variant]:
        found = [v for v in variants_of(case, self.settings.only, self.settings.beside) if v.maker in self.libraries]
        first = number % len(found) if found else 0
        return found[first:] + found[:first]

    def _run_case(self, results: Results, variant: Variant, case: Case, number: int) -> None:
        def cell_of(size: int) -> Cell:
            name = case.load.name
            return results.cell(case.section, case.collective, case.ranks, size, variant.name, case.measure, name)

        sizes = []
        for size in case.sizes:
            cell = cell_of(size)
            if cell.note.startswith(_CUT_OFF):
                continue
            if memory_needed(case, size) > _available_bytes() - _SPARE_BYTES:
                cell.note = "no memory"
                continue
            sizes.append(size)
        while sizes:
            outcome = run_job(variant, case, tuple(sizes), self.settings, self.bin_dir, self.cores)
            trials = self.settings.trials if case.measure == "time" else 1
            for i, record in enumerate(outcome.records):
                cell_of(sizes[i // trials]).add(record)
            done = len(outcome.records) // trials
            what = f"{case.section}: {variant.name}, {case.collective}, {case.ranks} ranks"
            if outcome.failure and done < len(sizes):
                cell_of(sizes[done]).note = outcome.failure
                _say(f"round {number + 1}, {what}, {size_text(sizes[done])}: {outcome.failure}")
                done += 1
            else:
                _say(f"round {number + 1}, {what}: {done} sizes")
                done = len(sizes)
            sizes = sizes[done:]

    def _measure_reference(self, results: Results, case: Case) -> None:
        command = [str(self.bin_dir / "compare_reference"), str(case.ranks), *(str(size) for size in case.sizes)]
        try:
            done = subprocess.run(
                command, env=clean_environment(), capture_output=True, timeout=_REFERENCE_LIMIT_S, check=True, text=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            _say(f"the reference of {case.ranks} ranks: {error}")
            return
        for line in done.stdout.splitlines():
            record = json.loads(line)
            if "reference_us" in record:
                values = results.references.setdefault((record["ranks"], record["bytes"]), [])
                values.append(float(f"{record['reference_us']:.5g}"))

    def _run_between_machines(self, results: Results, number: int) -> None:
        """Runs the section `veth`: starts this program again, as a process with two network namespaces."""
        with tempfile.TemporaryDirectory(prefix="tutti-compare-") as folder:
            raw = Path(folder) / "cells.json"
            settings = Path(folder) / "settings.json"
            inside = dataclasses.replace(self.settings, sections=("veth",), rounds=1)
            settings.write_text(json.dumps(dataclasses.asdict(inside)), encoding="utf-8")
            command = [str(self._tree / "tests/machines/with_machines.sh"), "2", sys.executable]
            command += [str(Path(__file__).with_name("compare.py")), "--bin", str(self.bin_dir)]
            command += ["--inside", str(settings), str(number), str(raw)]
            subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
            if not raw.exists():
                _say("veth: skipped: network namespaces cannot be created here, or the run in them has failed")
                return
            results.merge(Results.from_json(raw.read_text(encoding="utf-8")))


def settings_from(text: str) -> Settings:
    """Parses the settings that _run_between_machines() passes to the other process."""
    data: dict[str, Any] = json.loads(text)
    for name, value in data.items():
        data[name] = tuple(value) if isinstance(value, list) else value
    return Settings(**data)


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _say(text: str) -> None:
    print(f"compare: {text}", file=sys.stderr, flush=True)
