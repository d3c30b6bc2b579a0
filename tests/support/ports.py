#!/usr/bin/env python3
"""Ports that a test's job can listen on: ports.h, which says why, for Python and shell tests (ports.sh)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import tempfile
from typing import Optional

FIRST, LAST = 10_000, 19_999
F_OFD_SETLK = 37  # Linux; the module fcntl has it from Python 3.9 on
_file: Optional[int] = None


def _reserve(file: int, port: int) -> bool:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, port, 1, 0)
    try:
        fcntl.fcntl(file, F_OFD_SETLK, lock)
    except OSError:
        return False
    return True


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
    """The ports that the kernel gives to connections; none where it takes up all of ours."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as numbers:
            lowest, highest = map(int, numbers.read().split())
    except (OSError, ValueError):
        return range(0)
    return range(lowest, highest + 1) if lowest > FIRST + 1000 or highest + 1000 < LAST else range(0)


def free_port(count: int = 1, file: Optional[int] = None) -> int:
    """The first of `count` free ports in a row, reserved until whoever has opened `file` ends: by default, we."""
    global _file
    if file is None:
        if _file is None:
            path = f"{tempfile.gettempdir()}/tutti-test-ports-{os.getuid()}"
            _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = _file
    kernels = _kernels()
    start = os.getpid() * 61 % (LAST - FIRST)
    run = 0
    for i in range(LAST - FIRST + count):
        port = FIRST + (start + i) % (LAST - FIRST + 1)
        run = run + 1 if port != FIRST else 1
        if port in kernels or not _reserve(file, port) or not _can_be_bound(port):
            run = 0
        if run == count:
            return port - count + 1
    raise RuntimeError(f"no {count} free ports in {FIRST} to {LAST}")


if __name__ == "__main__":
    print(free_port(int(sys.argv[2]), int(sys.argv[1])))
