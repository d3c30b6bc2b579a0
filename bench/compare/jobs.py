"""Starts the processes of a job, watches them, and ends all of them.

The process that calls become_reaper() becomes the parent of all orphaned processes of its jobs. After a job, all of its
descendants are ended by their process ids. A job is ended if it completes no further size within the limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cases import Case, Settings
from load import JobLoad, die_with_parent
from peers import TUTTI_PORT, JobEnvironment, Process, Variant, driver_arguments, launch

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 2.0  # time after SIGTERM, for a launcher to end its ranks itself, and after SIGKILL
_POLL_S = 0.02
_ERROR_LINES = 3


@dataclass
class Outcome:
    records: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""  # reason if some sizes have no records


def become_reaper() -> None:
    """Makes orphaned descendants of this process its children, so that it can find and end all of them."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """The process ids of all descendants of `pid`."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in tasks.read_text().split()]
        except OSError:  # the process has exited in the meantime
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def end_descendants() -> None:
    """Ends all descendants of this process, first with SIGTERM, then with SIGKILL, and reads their exit statuses."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_S
        signalled: set[int] = set()
        while time.monotonic() < deadline:
            alive = [pid for pid in descendants(os.getpid()) if not _collect(pid)]
            if not alive:
                return
            for pid in set(alive) - signalled:
                _signal(pid, number)
            signalled |= set(alive)
            time.sleep(_POLL_S)


def _collect(pid: int) -> bool:
    """Whether the process is a child of this process and has ended. If so, reads its exit status."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # a grandchild: its parent reads the status, or this process later
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def clean_environment() -> dict[str, str]:
    """The environment without the variables by which a library would take this process for a rank of another job, or
    would change its behaviour."""
    foreign = (
        "TUTTI_",
        "OMPI_",
        "PMI",
        "UCX_",
        "MPI",
        "HYDRA_",
        "GLOO_",
        "COMPARE_",
        "SLURM_",
        "TORCHELASTIC_",
        "MALLOC_",
    )
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "MACHINES")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in launchers}


def run_job(
    variant: Variant, case: Case, sizes: tuple[int, ...], settings: Settings, bin_dir: Path, cores: int
) -> Outcome:
    """Runs one job until it ends or reaches its limit, and returns its results."""
    # The control file should be in shared memory and not on a disk. Without /dev/shm it is in the default temporary
    # folder.
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    here = Path(tempfile.mkdtemp(prefix="tutti-compare-", dir=base))
    listener: socket.socket | None = None
    try:
        (here / "store").mkdir()
        for name in ("control", "results"):
            (here / name).touch()
        root, root_fd = f"10.77.0.1:{TUTTI_PORT}", -1
        if variant.ours and case.place != "veth":
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            root, root_fd = f"127.0.0.1:{listener.getsockname()[1]}", listener.fileno()
        machines = tuple(os.environ.get("MACHINES", "").split())
        place = JobEnvironment(
            bin_dir, here, cores, machines, root, root_fd, Path(__file__).with_name("into_machine.sh").resolve()
        )
        options = driver_arguments(variant, case, sizes, settings.trials, settings.target_ms)
        options += ["--pause-ms", f"{settings.pause_ms:g}"]
        options += ["--control", str(here / "control"), "--results", str(here / "results")]
        trials = settings.trials if case.measure == "time" else 1
        processes = launch(variant, case, place, options)
        try:
            with JobLoad(case.load) as load:
                return _watch(processes, here, len(sizes), trials, settings.cell_limit_s, load)
        except OSError as error:
            return Outcome([], f"failed: {error}")
    finally:
        if listener is not None:
            listener.close()
        shutil.rmtree(here, ignore_errors=True)


def _watch(
    processes: list[Process], here: Path, sizes: int, trials: int, limit_s: float, load: JobLoad
) -> Outcome:
    log = here / "log"
    children: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("wb") as output:
            for process in processes:
                children.append(_start(process, here, output, load))
        failure = _wait(children, here / "results", sizes, trials, limit_s)
    except OSError as error:
        failure = f"failed: {error}"
    finally:
        end_descendants()
        for child in children:
            child.poll()  # end_descendants() has read the exit status; poll() tells Popen about it
    records = [json.loads(line) for line in (here / "results").read_text().splitlines()]
    if not failure and len(records) < sizes * trials:
        failure = "failed: " + _last_lines(log)
    return Outcome(records, failure)


def _start(process: Process, here: Path, output: IO[bytes], load: JobLoad) -> subprocess.Popen[bytes]:
    def prepare() -> None:
        die_with_parent()  # so this process, and with it its ranks, ends if this program is killed
        load.enter()

    env = clean_environment() | {"TMPDIR": str(here)} | process.env
    keeps = (process.keeps_fd,) if process.keeps_fd >= 0 else ()
    return subprocess.Popen(
        process.arguments,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=keeps,
        preexec_fn=prepare,  # safe because this process has only one thread
    )


def _wait(children: list[subprocess.Popen[bytes]], results: Path, sizes: int, trials: int, limit_s: float) -> str:
    """Waits until all processes have ended, one has failed, or a size takes too long. Returns a reason if a size takes
    too long; otherwise, or if all sizes are already measured, returns an empty string."""
    done = 0
    since = time.monotonic()
    while None in (statuses := [child.poll() for child in children]):
        if any(statuses):
            # Do not wait for the other ranks, because they wait for the failed one. _watch() gets the reason from the
            # log.
            return ""
        finished = results.read_bytes().count(b"\n") // trials
        if finished > done:
            done, since = finished, time.monotonic()
        if time.monotonic() - since > limit_s:
            # A job that has measured everything but does not exit is not reported as a failure.
            return f"cut off after {limit_s:g} s" if done < sizes else ""
        time.sleep(_POLL_S)
    return ""


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return (
        " ".join([line for line in lines if line and not line.startswith("---")][:_ERROR_LINES])[:300] or "no message"
    )
