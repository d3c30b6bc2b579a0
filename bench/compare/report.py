"""The report of a run: docs/performance.md and its plots. Its only input is a Results."""

from __future__ import annotations

from pathlib import Path

from cases import size_text
from plot import Line, Plot, svg
from results import Results, write_whole
from tables import Grid, all_reduce_table, by_ranks_table, collectives_table, notes, readme_table, waiting_table

_MAX_NOTES = 40

_METHOD = """\
All calls use float32 and sum. All-reduce and broadcast are in place; the other collectives have separate buffers
for input and output. One harness, which is not part of any library, drives all libraries. It uses the same buffers
(private pages from the system; for *tutti_registered*, memory of Tutti's allocator; for *tutti_heap*, memory of
malloc() with the shared heap, docs/heap.md), checks every element before and after the
measurement, determines the number of calls by the same rule, and has its own barrier. Rank r is pinned to core r
modulo cores, except with Gloo, because its event loop needs the other core. Rounds are the outermost loop, so that
drift affects all libraries equally. A figure is the median over all trials of all rounds in microseconds, with the
quartiles in brackets. If there is a core for each rank, the value of a trial is its median call after a barrier, as
the mean over the ranks. If there are more ranks than cores, it is the mean of calls back to back on the slowest
rank, which includes the switches of cores between ranks. For collectives with a root, it is the median call after a
barrier on the slowest rank. *best peer / tutti* is over 1 if Tutti is faster. *Shortest trials*: the ratio of the
shortest trial of each, which other programs have disturbed least. A cell that took longer than its limit is cut off
and marked. bench/README.md has the details.
"""

_TITLES = {
    "memory": (
        "All-reduce in one machine's memory",
        """\
The reference is no library. It is the time in which the cores of this machine do the same work without any copy,
measured in the same run: each core adds its share of the mapped buffers of all ranks and stores the sum to all of
them (docs/run.md). For 8 B on two ranks, it is the exchange of one cache line between two threads. Gloo only has
TCP.""",
    ),
    "tuned": (
        "All-reduce, peers' malloc tuned",
        """\
The peers run with MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=100000000000, so that scratch memory is not
returned to the system and mapped again in every call. Tutti has its defaults.""",
    ),
    "loopback": ("All-reduce over TCP, loopback", "All libraries are configured to use TCP on lo."),
    "veth": (
        "All-reduce over TCP, two machines",
        """\
The machines are two network namespaces, connected by veth pairs and a bridge. The first half of the ranks is on one
of them, the second half on the other. Tutti and Open MPI's ob1 share memory inside a machine. UCX and MPICH
consider both to be one machine, and are therefore configured to use only TCP.""",
    ),
}

_SESSIONS = (
    "Each rank is in its own session, and so in its own scheduling autogroup: "
    "sched_yield does not yield to other autogroups (where kernel.sched_autogroup_enabled is 1, the default)."
)

_COLLECTIVES = "The size is that of the larger buffer, input or output, as in nccl-tests."

_BUSY = """\
The ranks share the cores with busy loops, or may use only a part of the processor time (a cgroup's quota: so much of
all cores, granted anew every 100 ms). The loops are in one other session, unless the title says otherwise: with
kernel.sched_autogroup_enabled = 1, the default, Linux divides the time of a core among sessions first. No rank is
pinned. The times are those of calls back to back on the slowest rank. Open MPI yields while it waits. Libraries that
keep the core while they wait are left out."""

_WAITING = """\
Processor time, user and system, of a process (all its threads), in percent of the elapsed time. Waiting: in an
all-reduce of 8 B that rank 0 enters late, as the mean of the other ranks. Idle: after some calls, with no call in
progress."""


def write_report(results: Results, raw: Path, output: Path) -> list[Path]:
    """Writes performance.md and a plot for each number of ranks into `output`; returns what was written."""
    plots = _plots(results)
    for name, text in plots.items():
        write_whole(output / name, text)
    document = output / "performance.md"
    write_whole(document, performance_text(results, raw, list(plots)))
    return [document, *(output / name for name in plots)]


README_BEGIN = "<!-- scripts/compare writes the lines up to the next comment -->"
README_END = "<!-- end of the lines of scripts/compare -->"


# The names of the libraries by the first word of their variants (peers.py).
_PEERS = {
    "ompi": "Open MPI",
    "mpich": "MPICH",
    "gloo": "Gloo",
    "ompi5": "Open MPI 5",
    "mpich5": "MPICH 5",
    "impi": "Intel MPI",
}


def update_readme(results: Results, readme: Path) -> None:
    """Replaces the table of results in the README, and the sentence above it. Raises ValueError if the README does not
    have the two comments that enclose them."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not begin or not end:
        raise ValueError(f"{readme} has no lines for the results: {README_BEGIN} ... {README_END}")
    write_whole(readme, f"{before}{begin}\n{readme_text(results)}\n{end}{after}")


def readme_text(results: Results) -> str:
    machine = results.machine
    measured = {cell.variant.split("_")[0] for cell in results.of("memory") if cell.times}
    peers = [name for maker, name in _PEERS.items() if maker in measured]
    names = " and ".join(filter(None, [", ".join(peers[:-1]), *peers[-1:]]))
    return (
        f"How many times as fast as the best of {names} in the same run: float32 all-reduce in place on "
        f"{machine.get('cores')} cores of one {machine.get('cpu')}, {machine.get('date')}.\n\n    scripts/compare\n\n"
        f"{readme_table(results)}"
    )


def performance_text(results: Results, raw: Path, plots: list[str]) -> str:
    parts = ["# Performance compared with other libraries", _head(results, raw), _METHOD]
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
        parts.append(all_reduce_table(results, section, number, with_reference=section in ("memory", "tuned")))
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
    busy = results.of("busy")
    if busy:
        parts.append(f"## All-reduce on busy cores\n\n{_BUSY}")
    for load in dict.fromkeys(cell.load for cell in busy):
        for number in sorted({cell.ranks for cell in busy if cell.load == load}):
            parts += [f"### {load}, {number} ranks", all_reduce_table(results, "busy", number, load=load)]
    if results.of("waiting"):
        parts += [f"## Processor time without work\n\n{_WAITING}", waiting_table(results)]
    return parts


def plot_name(ranks: int) -> str:
    return f"performance-{ranks}.svg"


def _head(results: Results, raw: Path) -> str:
    machine = results.machine
    lines = [
        f"Generated by a run on {machine.get('date', 'an unknown date')}; do not edit this file:",
        "\n".join(f"    {run['command']}" for run in results.settings.get("runs", [])),
        f"Raw results: [{raw.name}]({raw.as_posix()}). Machine: {machine.get('cores')} cores ({machine.get('cpu')}), "
        f"{machine.get('memory_gib')} GiB, Linux {machine.get('kernel')}. Load average before each round: "
        f"{', '.join(str(load) for load in machine.get('load', []))}.",
        "Libraries: " + "; ".join(f"{name} {version}" for name, version in results.versions.items()) + ".",
    ]
    names = [f"| {key.split('/')[1]} | {key.split('/')[0]} | {what} |" for key, what in results.variants.items()]
    table = "\n".join(["| name | section | variant |", "|---|---|---|", *names])
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
        references = ((size, results.reference(ranks, size)) for size in grid.sizes)
        reference = tuple((float(size), value) for size, value in references if value)
        if reference:
            lines.append(Line("reference", reference, dashed=True))
        if lines:
            ticks = tuple((float(size), size_text(size)) for size in grid.sizes)
            title = f"All-reduce, {ranks} ranks, one machine's memory"
            plots[plot_name(ranks)] = svg(Plot(title, "size of the message", "time, µs", tuple(lines), ticks))
    return plots
