"""Injects faults into real jobs and prints a table of the outcomes. Started by scripts/fault-table.

Every try is a job of four fault_rank processes (fault_rank.cc). One of them, the victim, is hit by the fault at a random
time in the phase. Counted faults (COUNTED) happen inside the victim: the n-th allocation or descriptor fails. n is drawn
with a logarithmic distribution, so that small numbers are as likely as large ones. The program needs Linux. The
configuration with several machines and the full disk need the namespaces of tests/machines/with_machines.sh.
"""

import argparse
import collections
import ctypes.util
import dataclasses
import glob
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import ports

KEPT_DESCRIPTORS = {"verbs": 1}       # descriptors that the process keeps, by which it is notified of freed memory
RANKS = 4
DEADLINE_MS = 2000        # of a call
SETUP_DEADLINE_MS = 3000
RUN_S = 2                 # how long a rank makes calls if there is no fault
HANG_S = 30               # after the fault; a rank that takes longer counts as hanging
READY_S = 60
SETUP_S = 0.02            # approximate duration of the set-up after the last rank has begun
END_S = 10                # after its last line
COUNTED = {  # the maximum of n, in the phase setup and in the other phases
    "nth-allocation": (3000, 300), "nth-open": (50, 50), "thread-exception": (300, 100),
}
FAULTS = ("kill", "stop", "cut", "descriptors", "memory", "disk", *COUNTED)
WORLDS = {  # the environment of the ranks
    "shm": {},
    "tcp": {"TUTTI_TRANSPORT": "tcp"},
    "tls": {"TUTTI_TRANSPORT": "tcp", "TUTTI_ENCRYPT": "1"},
    "ucx": {"TUTTI_TRANSPORT": "ucx", "UCX_TLS": "tcp,self"},
    "verbs": {"TUTTI_TRANSPORT": "verbs"},
    "machines": {},
}
# An assertion of UCX 1.13 in a process whose peer closes a connection that is being made. Later versions do not have it:
# https://github.com/openucx/ucx/pull/8175
UCX_ASSERTION = re.compile(r"ucp_request\.c:\d+ +Assertion .*UCP_WIREUP_MSG")
PHASES = ("setup", "idle", "small", "large", "registered")
WORDS = {
    "kill": "kill -9", "stop": "SIGSTOP", "cut": "cable pulled", "descriptors": "no descriptors left",
    "memory": "no memory left", "disk": "disk full", "nth-allocation": "n-th allocation fails",
    "nth-open": "n-th descriptor fails", "thread-exception": "exception in a thread",
}


@dataclasses.dataclass
class OutputLine:
    at_s: float
    word: str
    rest: str


class Rank:
    """One process, and the lines that it has printed."""

    def __init__(self, number, command, environment, prepare=None):
        self.number = number
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, errors="replace", preexec_fn=prepare)
        self.stderr_text = ""
        self.readers = [threading.Thread(target=self._read_stdout), threading.Thread(target=self._read_stderr)]
        for reader in self.readers:
            reader.start()

    def _read_stdout(self):
        for text in self.process.stdout:
            parts = text.rstrip("\n").split(" ", 2)
            if len(parts) >= 2 and parts[0].isdigit():
                with self.changed:
                    self.lines.append(OutputLine(int(parts[0]) / 1e9, parts[1], parts[2] if len(parts) > 2 else ""))
                    self.changed.notify_all()
        with self.changed:
            self.lines.append(OutputLine(time.monotonic(), "eof", ""))
            self.changed.notify_all()

    def _read_stderr(self):
        self.stderr_text = self.process.stderr.read()[-4000:]

    def find(self, word):
        return next((line for line in self.lines if line.word == word), None)

    def wait_for(self, words, until_s):
        with self.changed:
            return self.changed.wait_for(lambda: any(self.find(word) for word in words),
                                         max(0.0, until_s - time.monotonic()))

    def end(self, patience_s):
        if patience_s > 0:
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                pass
        for sent in (signal.SIGCONT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(sent)
        status = self.process.wait()
        for reader in self.readers:
            reader.join()
        return status


@dataclasses.dataclass
class Try:
    """The outcome of one job."""

    noticed_s: list = dataclasses.field(default_factory=list)  # times of the survivors that reported an error
    unnamed: list = dataclasses.field(default_factory=list)    # errors that name no rank or the wrong one
    harmless: bool = False                                     # every call succeeded
    went_on: bool = False                                      # all survivors continued after the error
    cannot_go_on: bool = False
    wrong: int = 0
    hangs: int = 0
    by_ucx: int = 0                                            # processes that UCX_ASSERTION has ended
    left: list = dataclasses.field(default_factory=list)
    log: list = dataclasses.field(default_factory=list)


class Bench:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        first = ports.free_port(100)  # used again by later jobs
        self.ports = range(first, first + 100)
        self.jobs = itertools.count()
        self.machines = os.environ.get("MACHINES", "").split()
        self.records = tempfile.mkdtemp(prefix="fault-table-")
        self.full = os.path.join(self.records, "full")
        os.mkdir(self.full)
        if self.machines:  # in a private mount namespace
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "own", "/dev/shm"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "full", self.full], check=True)
            with open(os.path.join(self.full, "all-of-it"), "wb") as file:
                try:
                    file.write(b"x" * 70000)
                except OSError:
                    pass

    def close(self):
        if self.machines:
            subprocess.run(["umount", self.full], check=False)
        shutil.rmtree(self.records, ignore_errors=True)

    def shared_names(self):
        # If other jobs may use the same /dev/shm, nothing is counted.
        own = self.machines or self.options.own_shm
        return {name for name in os.listdir("/dev/shm") if "tutti" in name} if own else set()

    def cells(self):
        for fault in self.options.faults:
            for world in self.options.worlds:
                if not self.machines and (world == "machines" or fault == "disk"):
                    continue
                if world == "ucx" and not ctypes.util.find_library("ucp"):
                    continue
                if world == "verbs" and not glob.glob("/sys/class/infiniband/*"):
                    continue
                if fault == "cut" and world != "machines":
                    continue
                for phase in self.options.phases:
                    if fault == "disk" and phase != "small":
                        continue  # it occurs once, when the communicator is created
                    if fault == "nth-open" and world == "ucx" and phase != "setup":
                        continue  # UCX ends the process if it gets no descriptor during its shutdown
                    yield fault, world, phase

    def start(self, fault, world, phase, victim):
        port = self.ports.start + next(self.jobs) % len(self.ports)
        ranks = {}
        for number in sorted(range(RANKS), key=lambda number: number == victim):  # the victim starts last
            environment = dict(os.environ, TUTTI_RANK=str(number), TUTTI_WORLD_SIZE=str(RANKS),
                               TUTTI_ROOT=f"127.0.0.1:{port}", TUTTI_TIMEOUT_MS=str(DEADLINE_MS),
                               TUTTI_SETUP_TIMEOUT_MS=str(SETUP_DEADLINE_MS), TUTTI_LOG="error",
                               TUTTI_RECORD_DIR=self.full if fault == "disk" else self.records)
            environment.update(WORLDS[world])
            command = [self.options.rank, phase, str(RUN_S)]
            if fault in COUNTED and number == victim:
                most = COUNTED[fault][0 if phase == "setup" else 1]
                command += [fault, str(round(most ** self.random.random()))]
            if world == "machines":
                environment["TUTTI_ROOT"] = f"10.77.0.1:{port}"
                command = ["ip", "netns", "exec", self.machines[number * 2 // RANKS], *command]
            prepare = None
            if fault == "descriptors" and phase == "setup" and number == victim:
                most = self.random.randrange(16 if world == "machines" else 10, 24)  # the loader and `ip` need some
                prepare = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            ranks[number] = Rank(number, command, environment, prepare)
        return [ranks[number] for number in range(RANKS)]

    def inject(self, fault, victim):
        """Injects the fault. Returns a function that repairs effects on other processes, for example a pulled cable."""
        pid = victim.process.pid
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "stop":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "cut":
            cable = f"cable{victim.number * 2 // RANKS}"
            subprocess.run(["ip", "link", "set", cable, "down"], check=True)
            return lambda: subprocess.run(["ip", "link", "set", cable, "up"], check=True)
        elif fault == "descriptors":
            most = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        elif fault == "memory":
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                most = int(file.read().split()[0]) * resource.getpagesize()
            resource.prlimit(pid, resource.RLIMIT_AS, (most, most))
        return lambda: None

    def run_once(self, fault, world, phase):
        outcome = Try()
        names_before = self.shared_names()
        number = self.random.randrange(RANKS)
        ranks = self.start(fault, world, phase, number)
        victim = ranks[number]
        until_s = time.monotonic() + READY_S
        if phase == "setup":  # after main() has begun: if the dynamic loader fails, the library is not tested
            victim.wait_for(("begin", "eof"), until_s)
            time.sleep(self.random.uniform(0, SETUP_S))
        else:
            for rank in ranks:
                rank.wait_for(("ready", "eof"), until_s)
            time.sleep(self.random.uniform(0, 0.3))
        struck_s = time.monotonic()
        try:
            repair = self.inject(fault, victim)
        except (ProcessLookupError, FileNotFoundError):
            repair = lambda: None  # the process ended before the fault
        gone = fault in ("kill", "stop")
        watched = [rank for rank in ranks if not (gone and rank is victim)]
        for rank in watched:
            if not rank.wait_for(("end", "eof"), struck_s + HANG_S):
                outcome.hangs += 1
        repair()
        self.judge(outcome, fault, world, ranks, watched, victim, struck_s)
        for rank in ranks:
            outcome.log.append(f"rank {rank.number}: " + "; ".join(
                f"{line.at_s - struck_s:+.2f} s {line.word} {line.rest}"[:300] for line in rank.lines) + " " + rank.stderr_text)
            if rank is victim:
                outcome.log[-1] += f" (victim: {' '.join(rank.process.args)})"
        outcome.left += sorted(self.shared_names() - names_before)
        return outcome

    def judge(self, outcome, fault, world, ranks, watched, victim, struck_s):
        machine_of = lambda rank: rank * 2 // RANKS
        if fault in COUNTED and victim.find("error"):  # the time of the fault cannot be seen from outside
            struck_s = victim.find("error").at_s
        went_on = 0
        for rank in watched:
            error, end = rank.find("error"), rank.find("end")
            outcome.wrong += sum(line.word == "wrong" for line in rank.lines)
            went_on += rank is not victim and rank.find("shrunk") is not None
            if end and int(end.rest.split()[1]) > KEPT_DESCRIPTORS.get(world, 0):
                outcome.left.append(f"{end.rest.split()[1]} descriptors of rank {rank.number}")
            if error is None:
                continue
            outcome.noticed_s.append(max(0.0, error.at_s - struck_s))
            code, named_rank, message = error.rest.split(" ", 2)
            culprits = {victim.number}
            if fault == "cut":  # both ends of the cable are accepted
                culprits = {other.number for other in ranks if machine_of(other.number) != machine_of(rank.number)}
            named_in_text = any(re.search(rf"\branks?(\(s\))? (\d+, )*{one}\b", message) for one in culprits)
            named = int(named_rank) in culprits or (named_rank == "-1" and named_in_text)
            if rank is victim:  # its own error need not name a rank
                named = True
            if not named:
                outcome.unnamed.append(f"rank {rank.number}, victim {victim.number}: {code} {named_rank} {message}")
        for rank in ranks:
            status = rank.end(END_S if rank in watched else 0)
            if rank is victim and world == "ucx" and status == -signal.SIGABRT and UCX_ASSERTION.search(rank.stderr_text):
                outcome.by_ucx += 1
            elif rank in watched and status not in (0, 1) and not (rank is victim and fault == "memory"):
                outcome.left.append(f"rank {rank.number} ended with status {status}: {rank.stderr_text[-300:]}")
        outcome.harmless = not outcome.noticed_s
        survivors = [rank for rank in watched if rank is not victim]
        outcome.cannot_go_on = any(rank.find("ready") is None for rank in survivors)
        outcome.went_on = went_on == len(survivors)

    def run(self):
        rows = []
        cells = list(self.cells())
        for index, cell in enumerate(cells):
            tries = []
            for number in range(self.options.tries):
                if sys.stderr.isatty():
                    print(f"\r{index + 1}/{len(cells)} {' '.join(cell)} {number + 1}/{self.options.tries}    ", end="",
                          file=sys.stderr, flush=True)
                tries.append(self.run_once(*cell))
                bad = tries[-1].wrong or tries[-1].hangs or tries[-1].left or tries[-1].unnamed
                if bad or self.options.verbose:
                    print(f"\n{' '.join(cell)}: {bad}\n  " + "\n  ".join(tries[-1].log), file=sys.stderr)
            rows.append(row_of(cell, tries))
        if sys.stderr.isatty():
            print(file=sys.stderr)
        return rows


def row_of(cell, tries):
    noticed_s = [seconds for each in tries for seconds in each.noticed_s]
    could = [each for each in tries if not each.harmless and not each.cannot_go_on]
    return {
        "fault": cell[0], "world": cell[1], "phase": cell[2], "tried": len(tries),
        "harmless": sum(each.harmless for each in tries),
        "named": sum(not each.harmless and not each.unnamed for each in tries),
        "unnamed": sum(bool(each.unnamed) for each in tries),
        "could_go_on": len(could), "went_on": sum(each.went_on for each in could),
        "median_s": statistics.median(noticed_s) if noticed_s else None,
        "worst_s": max(noticed_s) if noticed_s else None,
        "wrong": sum(each.wrong for each in tries), "hangs": sum(each.hangs for each in tries),
        "left": sum(len(each.left) for each in tries), "by_ucx": sum(each.by_ucx for each in tries),
    }


def table(rows):
    text = ["| fault | world | phase | tried | no call failed | culprit named | went on | noticed after, median, worst | "
            "wrong | hangs | left over |", "|" + "---|" * 11]
    for row in rows:
        noticed = "-" if row["median_s"] is None else f"{row['median_s']:.2f} s, {row['worst_s']:.2f} s"
        failed = row["tried"] - row["harmless"]
        text.append(f"| {WORDS[row['fault']]} | {row['world']} | {row['phase']} | {row['tried']} | {row['harmless']} | "
                    f"{row['named']} of {failed} | "
                    f"{'-' if row['could_go_on'] == 0 else '%d of %d' % (row['went_on'], row['could_go_on'])} | "
                    f"{noticed} | {row['wrong']} | {row['hangs']} | {row['left']} |")
    total = collections.Counter()
    for row in rows:
        total.update({key: row[key] for key in ("tried", "wrong", "hangs", "left", "unnamed", "by_ucx")})
    text.append("")
    text.append(f"{total['tried']} jobs: {total['wrong']} wrong results, {total['hangs']} hangs, {total['left']} things "
                f"left over, {total['unnamed']} without the culprit's name.")
    if total["by_ucx"]:
        text.append(f"{total['by_ucx']} processes were ended by an assertion of UCX (docs/rdma.md).")
    return "\n".join(text), total


def some_of(known):
    def parse(text):
        chosen = text.split(",")
        for one in chosen:
            if one not in known:
                raise argparse.ArgumentTypeError(f"{one!r} is not one of {', '.join(known)}")
        return chosen
    return parse


def main():
    parser = argparse.ArgumentParser(prog="scripts/fault-table", description=__doc__)
    parser.add_argument("--rank", required=True, help="the program fault_rank")
    parser.add_argument("--tries", type=int, default=10, help="number of jobs for each combination of fault, world and phase")
    parser.add_argument("--seed", type=int, default=None, help="seed for the times and victims; default: random")
    parser.add_argument("--faults", type=some_of(FAULTS), default=list(FAULTS), help=",".join(FAULTS))
    parser.add_argument("--worlds", type=some_of(WORLDS), default=list(WORLDS), help=",".join(WORLDS))
    parser.add_argument("--phases", type=some_of(PHASES), default=list(PHASES), help=",".join(PHASES))
    parser.add_argument("--verbose", action="store_true", help="print the lines of every job, not only of failed ones")
    parser.add_argument("--own-shm", action="store_true", help="no other job uses /dev/shm, so count files left there")
    parser.add_argument("--output", help="also write the table to this file")
    parser.add_argument("--json", help="write the rows to this file, as JSON")
    options = parser.parse_args()
    if options.tries < 1:
        parser.error("--tries must be at least 1")
    bench = Bench(options)
    try:
        rows = bench.run()
    finally:
        bench.close()
    text, total = table(rows)
    print(text)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    sys.exit(1 if total["wrong"] or total["hangs"] or total["left"] or total["unnamed"] else 0)


if __name__ == "__main__":
    main()
