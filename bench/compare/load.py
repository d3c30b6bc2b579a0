"""Takes processor time from the ranks of a job: by busy loops beside them, or by a quota."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cases import Load

# Starts as many processes as its argument says, each of which computes until it is killed.
_BUSY_LOOPS = """
import ctypes, os, signal, sys
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        break
while True:
    pass
"""
_PR_SET_PDEATHSIG = 1
_PERIOD_US = 100_000  # Linux's default: the quota is granted anew ten times a second
_CGROUPS = Path("/sys/fs/cgroup")
_REMOVAL_S = 5.0  # time for the kernel to take ended processes out of a cgroup


class JobLoad:
    """The load of one job, as a context. Each process of the job calls enter() before it starts its program.

    Linux's scheduler takes the processes of a session for one program (an autogroup), and divides the processor time
    among programs first. So busy loops of another session take half of the time of their cores, and a loop of the
    ranks' own session gets as much time as a rank. Where autogroups are off (kernel.sched_autogroup_enabled is 0), or
    the job is in a cgroup with a share of its own, all loops are like those of the ranks' session. A quota needs a
    cgroup with the controller `cpu`, and the right to make one; if that fails, the context raises OSError.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loops: list[subprocess.Popen[bytes]] = []
        self._cgroup: Path | None = None

    def __enter__(self) -> JobLoad:
        if self._load.quota_percent:
            self._cgroup = _make_cgroup(self._load.quota_percent)
        for number, own_session in ((self._load.loops, True), (self._load.session_loops, False)):
            if number:
                command = [sys.executable, "-c", _BUSY_LOOPS, str(number)]
                self._loops.append(
                    subprocess.Popen(command, start_new_session=own_session, preexec_fn=die_with_parent)
                )
        return self

    def enter(self) -> None:
        """Puts the calling process under the quota, if there is one."""
        if self._cgroup is not None:
            (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_: object) -> None:
        for first_loop in self._loops:
            first_loop.kill()  # the loops that it has started die with it
            first_loop.wait()
        if self._cgroup is not None:
            _remove_cgroup(self._cgroup)


def why_no_quota() -> str:
    """The reason why this process cannot limit the processor time of a job; empty if it can."""
    try:
        _make_cgroup(100).rmdir()
    except OSError as error:
        return f"no cgroup with a quota can be made here: {error}"
    return ""


def die_with_parent() -> None:
    """Called in a child: the kernel kills it if its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _make_cgroup(percent: int) -> Path:
    """Makes a cgroup that may use `percent` of all cores. Raises OSError."""
    name = f"tutti-compare-{os.getpid()}"
    quota_us = _PERIOD_US * len(os.sched_getaffinity(0)) * percent // 100
    second_version = (_CGROUPS / "cgroup.controllers").exists()
    if second_version:
        (_CGROUPS / "cgroup.subtree_control").write_text("+cpu")
    cgroup = (_CGROUPS if second_version else _CGROUPS / "cpu") / name
    cgroup.mkdir()
    try:
        if second_version:
            (cgroup / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (cgroup / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (cgroup / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError:
        cgroup.rmdir()
        raise
    return cgroup


def _remove_cgroup(cgroup: Path) -> None:
    """Removes the cgroup when its processes, which have been ended, have left it. Leaves it if they do not."""
    deadline = time.monotonic() + _REMOVAL_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.01)
