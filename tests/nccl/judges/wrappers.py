#!/usr/bin/env python3
"""Calls libnccl.so.2 through a Python package that others wrote, with two ranks and host memory.

wrappers.py cupy|nccl4py|pynccl --site FOLDER --library FILE [--rank RANK --id HEX]

FOLDER has the unpacked wheels. Without --rank it starts both ranks. Rank 0 prints a line for each check: "ok NAME" or
"not ok NAME: REASON". The library must be preloaded (LD_PRELOAD), because some packages look for an installed one.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Callable

import numpy as np

COUNT = 1000
RANKS = 2
FLOAT32, SUM = 7, 0


def input_of(rank: int) -> np.ndarray:
    return (np.arange(COUNT, dtype=np.float32) % 7) + 10 * rank


class Checks:
    """Prints the lines of this rank's checks. Only rank 0 prints those that are right."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.failed = False

    def check(self, name: str, body: Callable[[], Any]) -> None:
        try:
            right, reason = bool(body()), "wrong values"
        except Exception as error:  # anything that the package raises is a failed check
            right, reason = False, f"{type(error).__name__}: {error}"
        if not right:
            self.failed = True
            print(f"not ok {name}: rank {self.rank}: {reason}", flush=True)
        elif self.rank == 0:
            print(f"ok {name}", flush=True)


class Buffers:
    """The input of this rank, and room for the blocks of all ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.input = input_of(rank)
        self.output = np.zeros(RANKS * COUNT, dtype=np.float32)

    @property
    def source(self) -> int:
        return self.input.ctypes.data

    @property
    def target(self) -> int:
        return self.output.ctypes.data

    def has(self, expected: np.ndarray) -> bool:
        found = self.output[: len(expected)].copy()
        self.output[:] = 0
        return bool(np.array_equal(found, expected))

    def sums(self) -> np.ndarray:
        return input_of(0) + input_of(1)

    def own_half(self) -> slice:
        return slice(self.rank * COUNT // RANKS, (self.rank + 1) * COUNT // RANKS)


def loaded_libraries() -> set[str]:
    """The files of libnccl that this process has loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.split()[-1] for line in lines if "libnccl.so" in line}


def check_collectives(checks: Checks, buffers: Buffers, call: dict[str, Callable[[], Any]]) -> None:
    """Runs the calls and checks their values. `call` has a function without arguments for each collective."""
    both = np.concatenate([input_of(0), input_of(1)])
    half = buffers.own_half()
    expected = {
        "all_reduce": buffers.sums(),
        "reduce": buffers.sums() if buffers.rank == 1 else np.zeros(0, dtype=np.float32),
        "reduce_scatter": buffers.sums()[half],
        "all_gather": both,
        "broadcast": input_of(1),
        "send and receive": input_of(1 - buffers.rank),
        "all_to_all": np.concatenate([input_of(0)[half], input_of(1)[half]]),
        "gather": both if buffers.rank == 1 else np.zeros(0, dtype=np.float32),
        "scatter": input_of(1)[half],
    }
    for name, function in call.items():
        checks.check(name, lambda function=function, name=name: (function(), buffers.has(expected[name]))[1])


def in_group(start: Callable[[], Any], calls: list[Callable[[], Any]], end: Callable[[], Any]) -> Callable[[], Any]:
    def body() -> None:
        start()
        for call in calls:
            call()
        end()

    return body


def cupy(checks: Checks, buffers: Buffers, _library: str, unique_id: bytes | None) -> bytes | None:
    from cupy_backends.cuda.libs import nccl

    if unique_id is None:
        return nccl.get_unique_id()
    checks.check("get_version", lambda: nccl.get_version() >= 23200)
    communicator = nccl.NcclCommunicator(RANKS, unique_id, buffers.rank)
    checks.check("rank and size", lambda: (communicator.rank_id(), communicator.size()) == (buffers.rank, RANKS))
    one, two, rank = buffers.source, buffers.target, buffers.rank
    check_collectives(checks, buffers, {
        "all_reduce": lambda: communicator.allReduce(one, two, COUNT, FLOAT32, SUM, 0),
        "reduce": lambda: communicator.reduce(one, two, COUNT, FLOAT32, SUM, 1, 0),
        "reduce_scatter": lambda: communicator.reduceScatter(one, two, COUNT // RANKS, FLOAT32, SUM, 0),
        "all_gather": lambda: communicator.allGather(one, two, COUNT, FLOAT32, 0),
        "broadcast": lambda: communicator.broadcast(one, two, COUNT, FLOAT32, 1, 0),
        "send and receive": in_group(nccl.groupStart, [
            lambda: communicator.send(one, COUNT, FLOAT32, 1 - rank, 0),
            lambda: communicator.recv(two, COUNT, FLOAT32, 1 - rank, 0)], nccl.groupEnd),
    })
    checks.check("check_async_error", lambda: communicator.check_async_error() is None)
    checks.check("destroy", lambda: communicator.destroy() is None)
    return None


def nccl4py(checks: Checks, buffers: Buffers, library: str, unique_id: bytes | None) -> bytes | None:
    import nccl.core
    from nccl.bindings import nccl as bindings

    if unique_id is None:
        return bytes(nccl.core.get_unique_id().as_bytes)
    found = nccl.core.get_version().libnccl
    checks.check("finds the library", lambda: Path(found.path).resolve() == Path(library).resolve())
    checks.check("get_version", lambda: str(found.version).startswith("2.32"))
    identity = nccl.core.UniqueId.from_bytes(unique_id)
    comm = nccl.core.Communicator.init(RANKS, buffers.rank, identity)
    checks.check("rank and size", lambda: (comm.rank, comm.nranks) == (buffers.rank, RANKS))
    at, one, two, rank = comm._comm, buffers.source, buffers.target, buffers.rank
    half = COUNT // RANKS
    check_collectives(checks, buffers, {
        "all_reduce": lambda: bindings.all_reduce(one, two, COUNT, FLOAT32, SUM, at, 0),
        "reduce": lambda: bindings.reduce(one, two, COUNT, FLOAT32, SUM, 1, at, 0),
        "reduce_scatter": lambda: bindings.reduce_scatter(one, two, half, FLOAT32, SUM, at, 0),
        "all_gather": lambda: bindings.all_gather(one, two, COUNT, FLOAT32, at, 0),
        "broadcast": lambda: bindings.broadcast(one, two, COUNT, FLOAT32, 1, at, 0),
        "send and receive": in_group(bindings.group_start, [
            lambda: bindings.send(one, COUNT, FLOAT32, 1 - rank, at, 0),
            lambda: bindings.recv(two, COUNT, FLOAT32, 1 - rank, at, 0)], bindings.group_end),
        "all_to_all": lambda: bindings.allto_all(one, two, half, FLOAT32, at, 0),
        "gather": lambda: bindings.gather(one, two, COUNT, FLOAT32, 1, at, 0),
        "scatter": lambda: bindings.scatter(one, two, half, FLOAT32, 1, at, 0),
    })
    child = comm.split(0, RANKS - rank)
    checks.check("split", lambda: child.rank == 1 - rank)
    checks.check("destroy of the split", lambda: child.destroy() is None)
    checks.check("params", lambda: "NCCL_DEBUG" in list(nccl.core.params.keys()))
    checks.check("finalize and destroy", lambda: (comm.finalize(), comm.destroy()) == (None, None))
    return None


def stand_ins_for_vllm() -> None:
    """The parts of vLLM that its wrapper imports. All of vLLM would need some hundred other packages."""
    import logging

    modules = {name: types.ModuleType(name) for name in
               ("vllm.envs", "vllm.logger", "vllm.platforms", "vllm.utils", "vllm.utils.nccl")}
    modules["vllm.logger"].init_logger = logging.getLogger
    modules["vllm.platforms"].current_platform = None
    modules["vllm.utils.nccl"].find_nccl_library = None
    sys.modules.update(modules)
    import vllm

    vllm.envs = modules["vllm.envs"]


def pynccl(checks: Checks, buffers: Buffers, library: str, unique_id: bytes | None) -> bytes | None:
    stand_ins_for_vllm()
    from vllm.distributed.device_communicators import pynccl_wrapper as wrapper

    nccl = wrapper.NCCLLibrary(library)
    if unique_id is None:
        return bytes(nccl.ncclGetUniqueId())
    checks.check("ncclGetVersion", lambda: nccl.ncclGetVersion().startswith("2.32"))
    identity = wrapper.ncclUniqueId.from_buffer_copy(unique_id)
    comm = nccl.ncclCommInitRank(RANKS, identity, buffers.rank)
    stream, rank = ctypes.c_void_p(0), buffers.rank
    one, two = ctypes.c_void_p(buffers.source), ctypes.c_void_p(buffers.target)
    check_collectives(checks, buffers, {
        "all_reduce": lambda: nccl.ncclAllReduce(one, two, COUNT, FLOAT32, SUM, comm, stream),
        "reduce": lambda: nccl.ncclReduce(one, two, COUNT, FLOAT32, SUM, 1, comm, stream),
        "reduce_scatter": lambda: nccl.ncclReduceScatter(one, two, COUNT // RANKS, FLOAT32, SUM, comm, stream),
        "all_gather": lambda: nccl.ncclAllGather(one, two, COUNT, FLOAT32, comm, stream),
        "broadcast": lambda: nccl.ncclBroadcast(one, two, COUNT, FLOAT32, 1, comm, stream),
        "send and receive": in_group(nccl.ncclGroupStart, [
            lambda: nccl.ncclSend(one, COUNT, FLOAT32, 1 - rank, comm, stream),
            lambda: nccl.ncclRecv(two, COUNT, FLOAT32, 1 - rank, comm, stream)], nccl.ncclGroupEnd),
    })
    checks.check("ncclCommDestroy", lambda: nccl.ncclCommDestroy(comm) is None)
    return None


JUDGES = {"cupy": cupy, "nccl4py": nccl4py, "pynccl": pynccl}


def start_ranks(arguments: argparse.Namespace) -> int:
    judge = JUDGES[arguments.judge]
    unique_id = judge(Checks(0), Buffers(0), arguments.tested, None)
    command = [sys.executable, __file__, arguments.judge, "--site", arguments.site, "--library", arguments.tested,
               "--id", unique_id.hex(), "--rank"]
    other = subprocess.Popen([*command, "1"])
    judged = Checks(0)
    try:
        judge(judged, Buffers(0), arguments.tested, unique_id)
        judged.check("uses this library alone", lambda: loaded_libraries() == {str(Path(arguments.tested).resolve())})
        return 1 if other.wait() != 0 or judged.failed else 0
    finally:
        other.kill()  # if this rank has failed; otherwise it has ended
        other.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", choices=JUDGES)
    parser.add_argument("--site", required=True)
    parser.add_argument("--library", dest="tested", required=True)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--id")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.site)
    if arguments.rank is None:
        return start_ranks(arguments)
    checks = Checks(arguments.rank)
    JUDGES[arguments.judge](checks, Buffers(arguments.rank), arguments.tested, bytes.fromhex(arguments.id))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
