"""A run's report: docs/performance.md and its plots, made from Results and from nothing else."""

from __future__ import annotations

from pathlib import Path

from cases import size_text
from plot import Line, Plot, svg
from results import Results, write_whole
from tables import Grid, all_reduce_table, by_ranks_table, collectives_table, notes, waiting_table

_MAX_NOTES = 40

_METHOD = """\
float32, sum, in place. Every library is driven by one harness, which is not part of any of them: the same buffers
(private pages as the system gives them; *tutti_registered*: Tutti's allocator), every element checked before and after,
the same number of calls by the same rule, a barrier of the harness's own. Rank r is pinned to core r modulo cores, Gloo
aside, whose event loop needs the other core. Rounds are outermost, so that drift hits all alike. A figure is the median
over all trials of all rounds in microseconds, in brackets the quartiles. With a core for each rank a trial's value is
its median call after a barrier, mean over the ranks; with more ranks than cores calls back to back on the slowest rank,
which have the hand-over of cores in them; for collectives with a root the median call after a barrier on the slowest
rank. *best peer / tutti*: over 1 where Tutti is quicker. A cell that took longer than its limit is cut off and says so.
bench/README.md tells more.
"""

_TITLES = {
    "memory": (
        "All-reduce in one machine's memory",
        """\
The bound is the machine's own, measured in the same run: each core adds its share of all ranks' mapped buffers and
stores it to all (docs/run.md); at 8 B on two ranks, two threads that exchange one cache line. Gloo has TCP only.""",
    ),
    "tuned": (
        "All-reduce, peers' malloc tuned",
        """\
Peers with MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=100000000000, so that scratch memory is not given back and
faulted in anew on every call. Tutti as it comes.""",
    ),
    "loopback": ("All-reduce over TCP, loopback", "All libraries are told to use TCP, on lo."),
    "veth": (
        "All-reduce over TCP, two machines",
        """\
Two network namespaces joined by veth pairs and a bridge; the first half of the ranks on one, the others on the other.
Tutti and Open MPI's ob1 share memory inside a machine; UCX and MPICH take both for one machine, and so are told to use
TCP alone.""",
    ),
}

_SESSIONS = "Each rank in a session, and so in a scheduling autogroup, of its own: sched_yield does not leave it."

_COLLECTIVES = "The size is the larger side's, as nccl-tests counts."

_WAITING = """\
Processor time, user and system, of a process (all its threads), in percent of the time on the wall. Waiting: in an
all-reduce of 8 B to which rank 0 comes late, mean of the others; idle: after some calls, none under way."""


def write_report(results: Results, raw: Path, output: Path) -> list[Path]:
    """Writes performance.md and a plot for each number of ranks into `output`; returns what was written."""
    plots = _plots(results)
    for name, text in plots.items():
        write_whole(output / name, text)
    document = output / "performance.md"
    write_whole(document, performance_text(results, raw, list(plots)))
    return [document, *(output / name for name in plots)]


def performance_text(results: Results, raw: Path, plots: list[str]) -> str:
    parts = ["# Performance beside other libraries", _head(results, raw), _METHOD]
    for section in _TITLES:
        parts += _all_reduce_parts(results, section, plots)
    parts += _other_parts(results)
    found = notes(results)
    if found:
        more = [f"- and {len(found) - _MAX_NOTES} more, in the raw results"] if len(found) > _MAX_NOTES else []
        parts += ["## Cells without figures, or with fewer", "\n".join(found[:_MAX_NOTES] + more)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _all_reduce_parts(results: Results, section: str, plots: list[str]) -> list[str]:
    ranks = sorted({cell.ranks for cell in results.of(section)})
    title, text = _TITLES[section]
    parts = [f"## {title}\n\n{text}"] if ranks else []
    for number in ranks:
        parts.append(f"### {number} ranks")
        name = plot_name(number)
        if section == "memory" and name in plots:
            parts.append(f"![time over size, {number} ranks]({name})")
        parts.append(all_reduce_table(results, section, number, with_bound=section in ("memory", "tuned")))
    return parts


def _other_parts(results: Results) -> list[str]:
    parts = []
    if results.of("many"):
        parts += ["## 8 B, many more ranks than cores", by_ranks_table(results, "many")]
    if results.of("sessions"):
        parts += [f"## 8 B, every rank started through setsid\n\n{_SESSIONS}", by_ranks_table(results, "sessions")]
    if results.of("collectives"):
        parts.append(f"## Other collectives, in one machine's memory\n\n{_COLLECTIVES}")
        for number in sorted({cell.ranks for cell in results.of("collectives")}):
            parts += [f"### {number} ranks", collectives_table(results, number)]
    if results.of("waiting"):
        parts += [f"## Processor time without work\n\n{_WAITING}", waiting_table(results)]
    return parts


def plot_name(ranks: int) -> str:
    return f"performance-{ranks}.svg"


def _head(results: Results, raw: Path) -> str:
    machine = results.machine
    lines = [
        f"Written by the run itself, on {machine.get('date', 'an unknown date')}; not to be edited:",
        "\n".join(f"    {run['command']}" for run in results.settings.get("runs", [])),
        f"Raw results: [{raw.name}]({raw.as_posix()}). Machine: {machine.get('cores')} cores ({machine.get('cpu')}), "
        f"{machine.get('memory_gib')} GiB, Linux {machine.get('kernel')}. Load average before each round: "
        f"{', '.join(str(load) for load in machine.get('load', []))}.",
        "Libraries: " + "; ".join(f"{name} {version}" for name, version in results.versions.items()) + ".",
    ]
    names = [f"| {key.split('/')[1]} | {key.split('/')[0]} | {what} |" for key, what in results.variants.items()]
    table = "\n".join(["| name | place | what |", "|---|---|---|", *names])
    return "\n\n".join([*lines, table])


def _plots(results: Results) -> dict[str, str]:
    plots = {}
    for ranks in sorted({cell.ranks for cell in results.of("memory")}):
        grid = Grid(results, "memory", "all_reduce", ranks)
        lines = []
        for variant in grid.variants:
            times = ((size, grid.time(variant, size)) for size in grid.sizes)
            points = tuple((float(size), time) for size, time in times if time)
            if points:
                lines.append(Line(variant, points, strong=variant in grid.ours))
        bounds = ((size, results.bound(ranks, size)) for size in grid.sizes)
        bound = tuple((float(size), value) for size, value in bounds if value)
        if bound:
            lines.append(Line("bound", bound, dashed=True))
        if lines:
            ticks = tuple((float(size), size_text(size)) for size in grid.sizes)
            title = f"All-reduce, {ranks} ranks, one machine's memory"
            plots[plot_name(ranks)] = svg(Plot(title, "message", "time, us", tuple(lines), ticks))
    return plots
