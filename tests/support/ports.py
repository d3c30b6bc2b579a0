#!/usr/bin/env python3
"""Reserves ports on which a test's job can listen, for Python and shell tests (ports.sh). See ports.h."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
import sys
import tempfile
from typing import Optional

FIRST, LAST = 10_000, 19_999
F_OFD_SETLK = 37  # the value on Linux; the module fcntl has the name since Python 3.9
# Where the search begins. Not at a port that follows from the process id: in process namespaces of their own, many
# processes have the same one. Two that search for a long run from the same port on would take ports in turn, and neither
# would find a run.
_START = random.SystemRandom().randrange(LAST - FIRST + 1)
_file: Optional[int] = None
_given = 0  # ports that this process has used already: its own locks do not exclude it


def _set(file: int, kind: int, port: int) -> bool:
    try:
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, port, 1, 0))
    except OSError:
        return False
    return True


def _reserve(file: int, port: int) -> bool:
    """Locks the port for `file`. Locks of the same open file do not exclude each other, so the lock is first taken with
    the file of this process."""
    assert _file is not None
    if not _set(_file, fcntl.F_WRLCK, port):
        return False
    return file == _file or (_set(_file, fcntl.F_UNLCK, port) and _set(file, fcntl.F_WRLCK, port))


def _can_be_bound(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                probe.bind(("", port))
        except OSError:
            if family == socket.AF_INET:
                return False
            if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
                return False
    return True


def _kernels() -> range:
    """The ports that the kernel assigns to connections. An empty range if they include all of ours."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as numbers:
            lowest, highest = map(int, numbers.read().split())
    except (OSError, ValueError):
        return range(0)
    return range(lowest, highest + 1) if lowest > FIRST + 1000 or highest + 1000 < LAST else range(0)


def free_port(count: int = 1, file: Optional[int] = None) -> int:
    """The first of `count` consecutive free ports. They are reserved until the process that opened `file` exits; by
    default this process."""
    global _file, _given
    if _file is None:
        path = f"{tempfile.gettempdir()}/tutti-test-ports-{os.getuid()}"
        _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file = _file if file is None else file
    kernels = _kernels()
    run = 0
    for i in range(_given, _given + LAST - FIRST + count):
        port = FIRST + (_START + i) % (LAST - FIRST + 1)
        good = port not in kernels and _reserve(file, port) and _can_be_bound(port)
        if not good or port == FIRST:  # the run of consecutive ports ends here
            for unused in range(max(FIRST, port - run), port):
                _set(file, fcntl.F_UNLCK, unused)
            run = 0
        run = run + 1 if good else 0
        if run == count:
            _given = i + 1
            return port - count + 1
    raise RuntimeError(f"no {count} free ports in {FIRST} to {LAST}")


if __name__ == "__main__":
    print(free_port(int(sys.argv[2]), int(sys.argv[1])))
