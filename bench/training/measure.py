"""Reference measurements of `tutti train`. scripts/measure-training builds what it needs and calls it.

A section has a list of jobs and a report. A job is one run of a command that writes a log. Every run is saved as soon
as it has ended, so that --resume can continue after an interruption. In a section with several seeds or rounds, the
outermost loop is over these, so that the results after an interruption have every row of the table if the first seed or
round is complete. One job runs at a time. sections.py defines the sections.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from runs import TREE, Job, Results, Settings
from sections import BATCH_SEEDS, MEMORY_ROUNDS, SECTIONS, Section

from jobs import become_reaper, clean_environment, end_descendants  # noqa: E402
from results import write_whole  # noqa: E402

# ---- Running one job


def run_job(job: Job, section: Section, limit_s: float) -> dict[str, Any]:
    """Runs one job. The result has `values`, or `failure` with the reason."""
    run: dict[str, Any] = {"when": datetime.datetime.now().isoformat(timespec="seconds"), "tutti": version()}
    run["load"] = round(os.getloadavg()[0], 2)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-training-") as folder:
        log = Path(folder) / "log.json"
        try:
            done = subprocess.run(
                [*job.command, "--json", str(log)],
                cwd=TREE,
                env=clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
            if done.returncode != 0:
                run["failure"] = f"exit status {done.returncode}: {last_lines(done.stderr or done.stdout)}"
            else:
                run["values"] = values_of(log, job, section)
        except subprocess.TimeoutExpired:
            run["failure"] = f"cut off after {limit_s:g} s"
        except (OSError, ValueError, KeyError, TypeError) as error:
            run["failure"] = f"{type(error).__name__}: {error}"
        finally:
            end_descendants()
    return run | {"wall_s": round(time.monotonic() - start, 2)}


def values_of(log: Path, job: Job, section: Section) -> dict[str, Any]:
    """The values in the log. Raises ValueError if the log lacks one that the section needs."""
    values = section.read(log, job)
    missing = [name for name in section.needs if values.get(name) is None]
    if missing:
        raise ValueError(f"the log has no {', '.join(missing)}")
    return values


def last_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())[-300:] or "no message"


def version() -> str:
    command = ["git", "-C", str(TREE), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("git") else None
    return done.stdout.strip() if done else ""


def machine_of(settings: Settings) -> dict[str, Any]:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(settings.cores),
        "cpu": cpu[0].partition(":")[2].strip() if cpu else "unknown",
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
    }


def say(text: str) -> None:
    print(f"measure-training: {text}", file=sys.stderr, flush=True)


# ---- The whole run


def begin(name: str, settings: Settings, resume: bool) -> Results:
    """With `resume`, the newest results of the section without the failed runs; otherwise empty results."""
    found = sorted(settings.output_dir.glob(f"????-??-??-training-{name}.json")) if resume else []
    results = Results.from_json(found[-1].read_text(encoding="utf-8")) if found else Results(name)
    results.runs = {key: run for key, run in results.runs.items() if "failure" not in run}
    return results


def run_section(name: str, settings: Settings, resume: bool, command: str) -> bool:
    """Runs the jobs that are missing. Returns whether every job of the section now has values."""
    section = SECTIONS[name]
    results = begin(name, settings, resume)
    results.machine = machine_of(settings)
    results.commands.append(command)
    jobs = section.jobs(settings)
    left = [job for job in jobs if results.of(job) is None]
    if len(left) < len(jobs):
        say(f"{name}: {len(jobs) - len(left)} of {len(jobs)} runs are there already")
    start = time.monotonic()
    for number, job in enumerate(left, 1):
        run = run_job(job, section, settings.limit_s)
        results.add(job, run)
        save(results, jobs, settings)
        minutes = (time.monotonic() - start) / number * (len(left) - number) / 60
        what = f"{job.row}, {job.sample}: {run.get('failure', 'done')}, {run['wall_s']:g} s"
        say(f"{name}, {len(jobs) - len(left) + number} of {len(jobs)}: {what}; about {minutes:.1f} min left")
    save(results, jobs, settings)
    say(f"{name}: wrote {base_of(results, settings)}.md")
    return not any("failure" in run for run in results.only(jobs).runs.values())


def base_of(results: Results, settings: Settings) -> Path:
    return settings.output_dir / f"{results.date}-training-{results.section}"


def save(results: Results, jobs: list[Job], settings: Settings) -> None:
    """Writes the raw results, and the report and the plot of the results of these jobs."""
    base = base_of(results, settings)
    write_whole(base.with_suffix(".json"), results.to_json())
    counted = results.only(jobs)
    section = SECTIONS[results.section]
    text = [*head_lines(counted, jobs, section), "", *section.report(counted, settings), "", *tail_lines(counted, jobs)]
    write_whole(base.with_suffix(".md"), "\n".join(text) + "\n")
    if section.picture is not None:
        write_whole(base.with_suffix(".svg"), section.picture(counted, settings))


def head_lines(results: Results, jobs: list[Job], section: Section) -> list[str]:
    runs = list(results.runs.values())
    done = sum("values" in run for run in runs)
    machine = results.machine
    loads = [run["load"] for run in runs] or [0.0]
    days = sorted({run["when"][:10] for run in runs})
    where = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
    lines = [f"# Training: {section.title}, {results.date}", ""]
    versions = ", ".join(sorted({run["tutti"] for run in runs})) or "?"
    where += f"; load before a run {min(loads):g} to {max(loads):g}; Tutti at {versions}; {done} of {len(jobs)} runs"
    where += f", on {' and '.join(days)}" if len(days) > 1 else ""
    lines.append(f"{where}; [raw numbers]({results.date}-training-{results.section}.json).")
    return [*lines, "", *(f"    {command}" for command in dict.fromkeys(results.commands))]


def tail_lines(results: Results, jobs: list[Job]) -> list[str]:
    """The commands, and the failed runs."""
    lines = ["## Commands", "", "Each command was followed by `--json FILE`.", ""]
    rows: dict[str, list[str]] = {}
    for job in jobs:
        rows.setdefault(job.template(), []).append(job.row)
    for command, names in rows.items():
        lines.append(f"- {names[0]}{'' if len(set(names)) == 1 else f' to {names[-1]}'}: `{command}`")
    failed = [(job, run) for job in jobs if (run := results.of(job)) is not None and "failure" in run]
    if failed:
        lines += ["", "## Failed", "", *(f"- {job.row}, {job.sample}: {run['failure']}" for job, run in failed)]
    return lines


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/measure-training", description="Measure tutti train.")
    add = parser.add_argument
    add("--sections", type=words, default=tuple(SECTIONS), help="comma-separated (all): " + ",".join(SECTIONS))
    add("--seeds", type=positive, help=f"number of seeds (5; 2 with --quick; batch uses at most {BATCH_SEEDS})")
    add("--rounds", type=positive, help=f"rounds of speed and memory (5; 1 with --quick; memory max. {MEMORY_ROUNDS})")
    add("--batch", type=positive, default=64, help="batch of speed, of all ranks together (64)")
    add("--step-ms", type=float, help="for curve: time of a step on one GPU without communication (100, assumed)")
    add("--step-source", help="the source of --step-ms, for the report")
    add("--limit-s", type=float, default=7200.0, help="a run that takes longer is ended and counts as failed (7200)")
    add("--quick", action="store_true", help="tiny sizes, to check that everything runs; writes to build/training")
    add("--resume", action="store_true", help="continue the newest results of each section, and repeat failed runs")
    add("--output-dir", type=Path, help="folder for results (docs/results; build/training with --quick)")
    add("--tutti", type=Path, default=TREE / "build/release/bin/tutti", help="the tutti command")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if not os.access(options.tutti, os.X_OK):
        parser.error(f"there is no {options.tutti}: scripts/build release tutti_tool")
    if options.step_ms is not None and not options.step_ms > 0:
        parser.error("--step-ms must be greater than 0")
    return options


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def relative_path(path: Path) -> str:
    """The path relative to the root of the tree, in which the jobs run; the absolute path if it is outside the tree."""
    # Symbolic links are not resolved, because the programs of a virtual environment are links.
    path = Path(os.path.abspath(path))
    return str(path.relative_to(TREE)) if path.is_relative_to(TREE) else str(path)


def settings_of(options: argparse.Namespace) -> Settings:
    torchrun = TREE / "build/python/bin/torchrun"
    output_dir = options.output_dir or TREE / ("build/training" if options.quick else "docs/results")
    source = "assumed, not measured" if options.step_ms is None else "given with --step-ms"
    return Settings(
        tutti=relative_path(options.tutti),
        output_dir=output_dir.resolve(),
        seeds=options.seeds or (2 if options.quick else 5),
        rounds=options.rounds or (1 if options.quick else 5),
        batch=options.batch,
        step_ms=options.step_ms or 100.0,
        step_source=options.step_source or source,
        quick=options.quick,
        limit_s=options.limit_s,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        torchrun=relative_path(torchrun) if os.access(torchrun, os.X_OK) else "",
    )


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    settings = settings_of(options)
    there = [base_of(Results(name), settings).with_suffix(".json") for name in options.sections]
    there = [path for path in there if path.exists()]
    if there and not (options.resume or options.quick):
        say(f"{there[0]} exists: continue it with --resume, or move it away to measure again")
        return 2
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    become_reaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = shlex.join(["scripts/measure-training", *arguments])
    try:
        whole = [run_section(name, settings, options.resume, command) for name in dict.fromkeys(options.sections)]
    except KeyboardInterrupt:
        say("interrupted; continue with --resume")
        return 130
    finally:
        end_descendants()
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
