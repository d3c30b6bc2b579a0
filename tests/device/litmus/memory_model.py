"""Judges litmus tests by the memory model of PTX, the instruction set of NVIDIA's GPUs.

A litmus test is a program of a few short threads, and a condition on the values that they read. This program enumerates
all executions that the model allows. So it answers for all GPUs what no run on one GPU can: whether a value can ever be
read too early. The tests in this folder are the hand-overs between GPUs of kernels/device.

Source of the model: NVIDIA, "PTX ISA", chapter "Memory Consistency Model"
(https://docs.nvidia.com/cuda/parallel-thread-execution/). The names of relations are those of that chapter. The format
of the files is that of herd7 and Dat3M: a column for each thread, whose head names its block (cta) and its GPU.

Its answers are those that Dat3M expects (PTXv6_0-expected.csv) for all 82 of 135 tests that it can read (2026-11-27).

Not modelled: loops, atomic read-modify-write operations, proxies, barriers for a number of threads, mixed sizes.
"""

import dataclasses
import itertools
import re
import sys


class Unsupported(Exception):
    """The test uses something that is not modelled."""


@dataclasses.dataclass(frozen=True)
class Event:
    thread: int           # -1: the write of an initial value
    kind: str             # R (read), W (write), F (fence), B (barrier of a block)
    location: str = ""    # R, W: the variable; B: the number of the barrier
    value: int = 0        # R, W
    order: str = "weak"   # weak, relaxed, acquire, release, acq_rel, sc
    scope: str = "sys"    # cta, gpu, sys


@dataclasses.dataclass
class Litmus:
    initial: dict         # variable: value
    threads: list         # of (cta, gpu, instructions)
    kind: str             # exists, ~exists, forall
    condition: str        # a Python expression over registers[thread][name] and memory[variable]


def parse(text):
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"^[^{]*", "", text)
    begin, end = text.index("{"), text.index("}")
    initial = {}
    for line in filter(None, (line.strip() for line in text[begin + 1:end].split(";"))):
        name, _, value = (part.strip() for part in line.partition("="))
        if not re.fullmatch(r"-?\d+", value):
            raise Unsupported(line)
        initial[name] = int(value)
    start = re.search(r"~?\s*exists|forall|filter|locations", text[end:])
    rows = [[cell.strip() for cell in row.split("|")] for row in text[end + 1:end + start.start()].split(";")]
    rows = [row for row in rows if any(row)]
    threads = []
    for column, head in enumerate(rows[0]):
        cta, gpu = re.fullmatch(r"P\d+\s*@\s*cta\s*(\d+)\s*,\s*gpu\s*(\d+)", head).groups()
        threads.append(((gpu, cta), gpu, [row[column] for row in rows[1:] if column < len(row) and row[column]]))
    kind, condition = re.fullmatch(r"(~?\s*exists|forall)\s*(.*)", text[end + start.start():].strip(), re.S).groups()
    condition = condition.replace("/\\", " and ").replace("\\/", " or ").replace("~", " not ").replace("\n", " ")
    condition = re.sub(r"(?<![=!<>])=(?!=)", "==", re.sub(r"\s*:\s*", ":", condition))
    condition = re.sub(r"(?<![\w:])(?!P\d|and\b|or\b|not\b)([A-Za-z_]\w*)(?![\w:])", r'memory["\1"]', condition)
    condition = re.sub(r"P?(\d+):(\w+)", r'registers[\1].get("\2",0)', condition)
    return Litmus(initial, threads, kind.replace(" ", ""), condition)


def traces(instructions, thread, values):
    """All ways to run a thread, if each load may return any of the `values` of its variable: (events, registers)."""
    labels = {line[:-1]: number for number, line in enumerate(instructions) if line.endswith(":")}
    found = []

    def run(at, registers, events):
        def number(operand):
            return int(operand) if re.fullmatch(r"-?\d+", operand) else registers.get(operand, 0)

        while at < len(instructions):
            line = instructions[at]
            at += 1
            if line.endswith(":"):
                continue
            name, _, rest = line.partition(" ")
            name, operands = name.split("."), [operand.strip() for operand in rest.split(",")]
            order, scope = (name + ["", "sys"])[1:3] if len(name) < 3 else name[1:3]
            if name[0] == "st":
                events = events + [Event(thread, "W", operands[0], number(operands[1]), order, scope)]
            elif name[0] == "ld" and len(name) == 1:
                registers = {**registers, operands[0]: number(operands[1])}
            elif name[0] == "ld":
                for value in values.get(operands[1], {0}):
                    run(at, {**registers, operands[0]: value},
                        events + [Event(thread, "R", operands[1], value, order, scope)])
                return
            elif name[0] == "fence" and name[1] != "proxy":
                events = events + [Event(thread, "F", order=order, scope=scope)]
            elif name[0] in ("bar", "barrier") and name[2] == "sync" and len(operands) == 1:
                events = events + [Event(thread, "B", operands[0], scope="cta")]
            elif name[0] in ("beq", "bne", "goto"):
                target = labels[operands[-1]]
                if target < at:
                    raise Unsupported("a loop")
                equal = name[0] == "goto" or number(operands[0]) == number(operands[1])
                if name[0] == "goto" or equal == (name[0] == "beq"):
                    at = target
            else:
                raise Unsupported(line)
        found.append((events, registers))

    run(0, {}, [])
    return found


def all_traces(test):
    """The traces of each thread. The values that a variable can have are found step by step, beginning with zero."""
    values = {name: {value} for name, value in test.initial.items() if ":" not in name}
    while True:
        of_threads = [traces(code, number, values) for number, (_, _, code) in enumerate(test.threads)]
        more = {name: set(known) for name, known in values.items()}
        for event in (event for trace in of_threads for events, _ in trace for event in events):
            if event.kind in "RW":
                more.setdefault(event.location, {0}).add(event.value)
        if more == values:
            return of_threads, values
        values = more


def compose(first, second):
    """(a, c) for each (a, b) in `first` and (b, c) in `second`."""
    after = {}
    for a, b in second:
        after.setdefault(a, set()).add(b)
    return {(a, c) for a, b in first for c in after.get(b, ())}


def closure(relation):
    result = set(relation)
    while True:
        more = result | compose(result, relation)
        if more == result:
            return result
        result = more


def has_cycle(relation):
    return any(a == b for a, b in closure(relation))


class Candidate:
    """One trace of each thread, with the relations that do not depend on the writes from which the reads read."""

    def __init__(self, test, chosen, names):
        self.events = [Event(-1, "W", name, test.initial.get(name, 0)) for name in names]
        self.blocks = [None] * len(self.events)
        self.gpus = [None] * len(self.events)
        self.program_order = set()
        for (cta, gpu, _), (events, _) in zip(test.threads, chosen):
            first = len(self.events)
            self.events += events
            self.blocks += [cta] * len(events)
            self.gpus += [gpu] * len(events)
            self.program_order |= set(itertools.combinations(range(first, len(self.events)), 2))
        self.all = range(len(self.events))
        self.reads = [e for e in self.all if self.events[e].kind == "R"]
        self.writes = [e for e in self.all if self.events[e].kind == "W"]
        self.sc_fences = [e for e in self.all if self.events[e].kind == "F" and self.events[e].order == "sc"]
        self.order_at_location = {(a, b) for a, b in self.program_order if self.same_location(a, b)}
        self.morally_strong = {(a, b) for a in self.all for b in self.all if a != b and self.are_morally_strong(a, b)}
        self.barriers = {(a, b) for a in self.all for b in self.all if self.meet_at_barrier(a, b)}
        self.releases, self.acquires = self.patterns()

    def same_location(self, a, b):
        return self.events[a].kind in "RW" and self.events[b].kind in "RW" and \
            self.events[a].location == self.events[b].location

    def includes(self, a, b):
        """Whether the scope of event a includes the thread of event b."""
        return {"sys": True, "gpu": self.gpus[a] == self.gpus[b],
                "cta": self.blocks[a] == self.blocks[b]}[self.events[a].scope]

    def is_strong(self, e):
        return self.events[e].kind == "F" or self.events[e].kind in "RW" and self.events[e].order != "weak"

    def are_morally_strong(self, a, b):
        if self.events[a].thread < 0 or self.events[b].thread < 0:
            return False
        both_access = self.events[a].kind in "RW" and self.events[b].kind in "RW"
        if both_access and not self.same_location(a, b):
            return False
        if (a, b) in self.program_order or (b, a) in self.program_order:
            return True
        return self.is_strong(a) and self.is_strong(b) and self.includes(a, b) and self.includes(b, a)

    def meet_at_barrier(self, a, b):
        first, second = self.events[a], self.events[b]
        return first.kind == second.kind == "B" and first.thread != second.thread and \
            first.location == second.location and self.blocks[a] == self.blocks[b]

    def patterns(self):
        """The release patterns as (first operation, write) and the acquire patterns as (read, last operation)."""
        releases, acquires = set(), set()
        for a, event in enumerate(self.events):
            strong_writes = [w for w in self.writes if self.is_strong(w)]
            strong_reads = [r for r in self.reads if self.is_strong(r)]
            if event.kind == "W" and event.order == "release":
                releases |= {(a, w) for w in strong_writes if w == a or (a, w) in self.order_at_location}
            if event.kind == "R" and event.order == "acquire":
                acquires |= {(r, a) for r in strong_reads if r == a or (r, a) in self.order_at_location}
            if event.kind == "F":
                releases |= {(a, w) for w in strong_writes if (a, w) in self.program_order}
                acquires |= {(r, a) for r in strong_reads if (r, a) in self.program_order}
        return releases, acquires

    def coherence_orders(self):
        """The coherence order of each execution with these traces that the model allows."""
        sources = [[w for w in self.writes if self.same_location(w, r) and self.events[w].value == self.events[r].value
                    and (r, w) not in self.program_order] for r in self.reads]
        for order in itertools.permutations(self.sc_fences):
            fences = {pair for pair in itertools.combinations(order, 2) if pair in self.morally_strong}
            if any((b, a) in self.program_order for a, b in fences):
                continue
            for chosen in itertools.product(*sources):
                yield from self.consistent(set(zip(chosen, self.reads)), fences)

    def consistent(self, reads_from, fences):
        observed = self.morally_strong & reads_from
        synchronizes = compose(compose(self.releases, observed), self.acquires) & self.morally_strong
        same = {(e, e) for e in self.all}
        or_later = self.program_order | same
        base = closure(compose(compose(or_later, synchronizes | fences | self.barriers), or_later))
        causality = base | compose(observed, base | self.order_at_location)
        if any((a, b) in causality and (a, b) not in fences for a in self.sc_fences for b in self.sc_fences):
            return  # axiom "Fence-SC"
        if any((r, w) in causality for w, r in reads_from):
            return  # axiom "Causality": a read does not read from a later write
        if any((w, w) in causality for w in self.writes):
            return  # axiom "Coherence"
        pairs = [(a, b) for a in self.writes for b in self.writes if a != b and self.same_location(a, b)]
        needed = {(a, b) for a, b in pairs if (a, b) in causality or self.events[a].thread < 0 <= self.events[b].thread}
        # Writes that are not ordered by causality are in coherence order only if they are morally strong.
        free = [(a, b) for a, b in pairs if a < b and (a, b) in self.morally_strong and
                (a, b) not in needed and (b, a) not in needed]
        for swaps in itertools.product((False, True), repeat=len(free)):
            coherence = closure(needed | {(b, a) if swap else (a, b) for (a, b), swap in zip(free, swaps)})
            if any(a == b for a, b in coherence):
                continue  # axiom "Coherence"
            from_reads = {(r, later) for w, r in reads_from for first, later in coherence if first == w}
            if any((w, r) in causality for r, w in from_reads):
                continue  # axiom "Causality": a read does not miss an earlier write
            communication = self.morally_strong & (reads_from | coherence | from_reads)
            if not has_cycle(communication | self.order_at_location):  # axiom "SC-per-Location"
                yield coherence

    def final_memories(self, coherence):
        """All contents of the memory at the end: of each variable a write that no other write follows."""
        last = {}
        for w in self.writes:
            if not any(first == w for first, _ in coherence):
                last.setdefault(self.events[w].location, set()).add(self.events[w].value)
        return [dict(zip(last, chosen)) for chosen in itertools.product(*last.values())]


def holds(text):
    """Whether the condition of the litmus test is true."""
    test = parse(text)
    of_threads, values = all_traces(test)
    outcomes = set()
    for chosen in itertools.product(*of_threads):
        candidate = Candidate(test, chosen, sorted(values))
        for coherence in candidate.coherence_orders():
            for memory in candidate.final_memories(coherence):
                names = {"registers": [registers for _, registers in chosen], "memory": memory}
                outcomes.add(bool(eval(test.condition, names)))
            if "memory" not in test.condition:
                break  # other orders of the same traces have the same outcome
    return {"exists": True in outcomes, "~exists": True not in outcomes, "forall": False not in outcomes}[test.kind]


if __name__ == "__main__":
    failed = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            right = holds(file.read())
        failed += not right
        print("right" if right else "WRONG", path)
    sys.exit(1 if failed else 0)
