"""The measurements: sections, each with a list of cases. Values only; no processes and no files.

A case is one collective with one number of ranks in one setting ("memory", "loopback" or "veth"), at several sizes. A
job is the execution of a case by one variant of one library (peers.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB

ALL_REDUCE_SIZES = (8, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
OTHER_SIZES = (KIB, MIB, 64 * MIB)
QUICK_SIZES = (8, 64 * KIB, MIB)
QUICK_OTHER_SIZES = (KIB, 64 * KIB, MIB)
OTHER_COLLECTIVES = (
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SECTIONS = ("memory", "loopback", "veth", "many", "sessions", "collectives", "tuned", "waiting", "busy")
# The section "tuned" has only sizes from this one on: for smaller ones malloc keeps scratch memory without settings.
TUNED_FROM = MIB
# The section "busy" has only sizes up to this one, because one call of a longer one takes many time slices anyway.
BUSY_UP_TO = 16 * MIB
MAX_RANKS = 64


@dataclass(frozen=True)
class Load:
    """What takes processor time from the ranks of a job: busy loops, which are processes that compute all the time, or
    a quota. Load(): nothing."""

    loops: int = 0  # number of busy loops, together in a session of their own
    session_loops: int = 0  # number of busy loops in the ranks' session
    quota_percent: int = 0  # how much of all cores the ranks may use together; 0: all of it

    def __bool__(self) -> bool:
        return bool(self.loops or self.session_loops or self.quota_percent)

    @property
    def name(self) -> str:
        parts = []
        if self.loops:
            parts.append(_busy_loops(self.loops))
        if self.session_loops:
            parts.append(f"{_busy_loops(self.session_loops)} of the same session")
        if self.quota_percent:
            parts.append(f"{self.quota_percent}% quota")
        return ", ".join(parts)


def _busy_loops(number: int) -> str:
    return "1 busy loop" if number == 1 else f"{number} busy loops"


BUSY_LOADS = (
    Load(loops=1),
    Load(loops=2),
    Load(loops=4),
    Load(session_loops=1),
    Load(session_loops=4),
    Load(quota_percent=20),
)


@dataclass(frozen=True)
class Case:
    section: str
    place: str  # "memory", "loopback" or "veth"
    collective: str
    ranks: int
    sizes: tuple[int, ...]
    measure: str = "time"  # or "late", "idle"; see enum Measure in options.h
    own_sessions: bool = False  # each rank is started through setsid, so it has its own scheduling autogroup
    tuned: bool = False  # peers run with a malloc that is configured to keep memory
    load: Load = Load()  # what the ranks share the cores with


@dataclass(frozen=True)
class Settings:
    sections: tuple[str, ...] = ("memory", "loopback", "many", "sessions", "collectives", "waiting")
    ranks: tuple[int, ...] = (2, 4, 8)
    many_ranks: tuple[int, ...] = (16, 32)
    sizes: tuple[int, ...] = ALL_REDUCE_SIZES
    other_sizes: tuple[int, ...] = OTHER_SIZES
    rounds: int = 5
    trials: int = 2  # trials of each size in a round
    target_ms: float = 100.0
    pause_ms: float = 2000.0
    cell_limit_s: float = 60.0  # if one size takes longer, its job is ended
    only: tuple[str, ...] = field(default=())  # names of variants; empty: all
    beside: str = ""  # the folder of another build's drivers, which are measured too


def all_cases(settings: Settings, cores: int) -> list[Case]:
    """The cases of the settings' sections, in the order of SECTIONS."""
    cases: list[Case] = []
    for section in SECTIONS:
        if section in settings.sections:
            cases += _cases_of(section, settings, cores)
    return cases


def _cases_of(section: str, settings: Settings, cores: int) -> list[Case]:
    if section in ("memory", "loopback", "veth"):
        return [Case(section, section, "all_reduce", ranks, settings.sizes) for ranks in settings.ranks]
    if section == "many":
        return [Case(section, "memory", "all_reduce", ranks, (8,)) for ranks in settings.many_ranks]
    if section == "sessions":
        everyone = settings.ranks + settings.many_ranks
        return [Case(section, "memory", "all_reduce", ranks, (8,), own_sessions=True) for ranks in everyone]
    if section == "tuned":
        sizes = tuple(size for size in settings.sizes if size >= TUNED_FROM)
        return [Case(section, "memory", "all_reduce", ranks, sizes, tuned=True) for ranks in settings.ranks if sizes]
    if section == "busy":
        sizes = tuple(size for size in settings.sizes if size <= BUSY_UP_TO)
        return [
            Case(section, "memory", "all_reduce", ranks, sizes, load=load)
            for load in BUSY_LOADS
            for ranks in settings.ranks
            if sizes
        ]
    if section == "waiting":
        return [
            Case(section, "memory", "all_reduce", ranks, (8,), measure=measure)
            for measure in ("late", "idle")
            for ranks in sorted({2, 2 * cores})
        ]
    return [
        Case(section, "memory", collective, ranks, (0,) if collective == "barrier" else settings.other_sizes)
        for collective in OTHER_COLLECTIVES
        for ranks in settings.ranks
    ]


def parse_size(text: str) -> int:
    """ "64K" -> 65536; K, M and G are powers of 1024. Raises ValueError."""
    factors = {"K": KIB, "M": MIB, "G": 1024 * MIB}
    factor = factors.get(text[-1:].upper(), 1)
    number = int(text[:-1] if factor > 1 else text)
    size = number * factor
    if not 4 <= size <= 1024 * MIB:
        raise ValueError(f"a size of {text} is not within 4 bytes and 1 GiB")
    return size


def size_text(size: int) -> str:
    """65536 -> "64 KiB"."""
    for factor, unit in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def memory_needed(case: Case, size: int) -> int:
    """Bytes of the buffers of all ranks, including scratch memory of the library, plus 10 %."""
    return size * case.ranks * (2 if case.collective in ("all_reduce", "broadcast") else 3) * 11 // 10
