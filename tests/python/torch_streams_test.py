"""Tests of the backend "tutti" with CUDA tensors and streams, with the fake CUDA driver (tests/device/fake_driver).

The tests use a CPU build of torch. They replace its CUDA streams and events by those of the fake driver. The tensors
are in the device memory of the fake driver, which the host can read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402
from conftest import TOOL  # noqa: E402

FAKE_DRIVER = Path(TOOL).parents[1] / "fake_driver"
LIMIT_S = 20.0
GPU = torch.device("cuda", 0)


def driver(name: str, *arguments: Any) -> int:
    """Calls a function of the fake driver, found as the CUDA runtime does, and returns its result."""
    library = ctypes.CDLL("libcuda.so.1")
    function, found = ctypes.c_void_p(), ctypes.c_int()
    asked = library.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), 12000, 0, ctypes.byref(found))
    assert asked == 0, name
    return ctypes.CFUNCTYPE(ctypes.c_int, *[type(each) for each in arguments])(function.value)(*arguments)


def must(name: str, *arguments: Any) -> None:
    status = driver(name, *arguments)
    assert status == 0, (name, status)


def reference(value: Any) -> Any:
    return ctypes.cast(ctypes.byref(value), ctypes.c_void_p)


class Stream:
    """Replaces torch.cuda.Stream."""

    def __init__(self, device: Any = None):
        self.device = GPU
        self.handle = ctypes.c_void_p()
        must("cuStreamCreate", reference(self.handle), ctypes.c_uint(1))
        self.cuda_stream = self.handle.value

    def wait_event(self, event: "Event") -> None:
        must("cuStreamWaitEvent", self.handle, event.handle, ctypes.c_uint(0))

    def wait_stream(self, other: "Stream") -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        must("cuStreamSynchronize", self.handle)


class Event:
    """Replaces torch.cuda.Event."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        must("cuEventCreate", reference(self.handle), ctypes.c_uint(2))

    def record(self, stream: Stream) -> None:
        must("cuEventRecord", self.handle, stream.handle)

    def query(self) -> bool:
        return driver("cuEventQuery", self.handle) == 0


class OnGpu(torch.Tensor):
    """A tensor in the device memory of the fake driver. Its attributes state that it is on a GPU."""

    is_cpu = False
    is_cuda = True
    device = GPU

    def record_stream(self, stream: Any) -> None:
        pass

    def values(self) -> List[float]:
        return self.as_subclass(torch.Tensor).tolist()


def full(count: int, value: float) -> Any:
    address = ctypes.c_uint64()
    must("cuMemAlloc", reference(address), ctypes.c_size_t(4 * count))
    memory = (ctypes.c_char * (4 * count)).from_address(address.value)
    return torch.frombuffer(memory, dtype=torch.float32).fill_(value).as_subclass(OnGpu)


def set_up(rank: int, size: int, folder: str) -> None:
    import tutti.torch
    import tutti.torch.work

    context = ctypes.c_void_p()
    must("cuInit", ctypes.c_uint(0))
    must("cuDevicePrimaryCtxRetain", reference(context), ctypes.c_int(0))
    must("cuCtxSetCurrent", context)
    current = Stream()
    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc, assignment]
    torch.cuda.current_stream = lambda device=None: current  # type: ignore[assignment, return-value]
    torch.cuda.current_device = lambda: 0
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment]
    tutti.torch.work.Future = lambda devices=None: torch.futures.Future()  # type: ignore[misc, assignment]
    dist.init_process_group(
        "tutti",
        store=torch_ranks.store(folder, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT_S),
        pg_options=tutti.torch.Options(device=0),
    )


def tear_down(rank: int, size: int) -> None:
    dist.destroy_process_group()


def group() -> Any:
    return dist.distributed_c10d._get_default_group()


def started(tensor: Any) -> Any:
    """Starts an all_reduce and returns its Work without waiting."""
    options = c10d.AllreduceOptions()
    options.asyncOp = True
    return group().allreduce([tensor], options)


def all_reduce(tensor: Any) -> Any:
    options = c10d.AllreduceOptions()
    options.asyncOp = False
    group().allreduce([tensor], options).wait()
    torch.cuda.current_stream().synchronize()
    return tensor


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(1e-3)


def check_well(rank: int, size: int) -> None:
    assert all_reduce(full(3, rank + 1.0)).values() == [size * (size + 1) / 2] * 3
    tensor = full(3, rank + 1.0)
    work = started(tensor)
    assert work.wait()
    torch.cuda.current_stream().synchronize()
    assert tensor.values() == [size * (size + 1) / 2] * 3
    until(work.is_completed, "the end of a call")
    assert work.is_success() and work.exception() is None
    assert work.get_future().wait()[0] is tensor


def check_each_work_has_its_own_error(rank: int, size: int) -> None:
    well, wrong = started(full(3, 1.0)), started(full(3 + rank, 1.0))
    until(lambda: well.is_completed() and wrong.is_completed(), "the end of two calls")
    assert well.is_success() and well.exception() is None
    assert not wrong.is_success()
    assert "disagree" in str(wrong.exception())
    torch_ranks.raises(RuntimeError, wrong.wait, "disagree")
    torch_ranks.raises(RuntimeError, wrong.wait, "disagree")  # the error stays
    # the error of `wrong` is not reported again
    assert well.wait() and all_reduce(full(2, 1.0)).values() == [float(size)] * 2


def check_error_of_who_is_not_asked(rank: int, size: int) -> None:
    """A Work with an error is deleted without wait(). The next call that is waited for must report the error, once."""
    other = started(full(3 + rank, 1.0))
    until(other.is_completed, "the end of a call")
    del other
    torch_ranks.raises(RuntimeError, lambda: all_reduce(full(2, 1.0)), "disagree")
    assert all_reduce(full(2, 1.0)).values() == [float(size)] * 2
    dropped, wrong = started(full(3 + rank, 1.0)), started(full(4 + rank, 1.0))
    until(lambda: dropped.is_completed() and wrong.is_completed(), "the end of two calls")
    torch_ranks.raises(RuntimeError, wrong.wait, "passed count 4")
    torch_ranks.raises(RuntimeError, lambda: all_reduce(full(2, 1.0)), "passed count 3")
    assert all_reduce(full(2, 1.0)).values() == [float(size)] * 2


def check_futures(rank: int, size: int) -> None:
    tensor = full(3, 1.0)
    futures = [started(tensor).get_future(), started(full(3 + rank, 1.0)).get_future()]
    assert futures[0].then(lambda future: future.value()[0].values()).wait() == [float(size)] * 3
    torch_ranks.raises(RuntimeError, futures[1].wait, "disagree")
    with contextlib.suppress(RuntimeError):  # the error of the dropped Work, if its future was added too late
        all_reduce(full(2, 1.0))
    assert all_reduce(full(2, 1.0)).values() == [float(size)] * 2


def check_batch(rank: int, size: int) -> None:
    tensors = [full(3, 1.0), full(2, 2.0)]
    work = group().allreduce_coalesced(tensors)
    work.wait()
    torch.cuda.current_stream().synchronize()
    assert [tensor.values() for tensor in tensors] == [[size * 1.0] * 3, [size * 2.0] * 2]
    until(work.is_completed, "the end of a batch")
    assert work.is_success()


def check_wrong_device(rank: int, size: int) -> None:
    """A call or batch with tensors of the host and of a GPU is rejected on this rank. The group still works."""
    here, there = torch.ones(3), full(3, 1.0)
    group()._start_coalescing(GPU)
    group().allreduce([there])
    torch_ranks.raises(ValueError, lambda: group().allreduce([here]), "one device, not cuda:0 and cpu")
    for call in (
        lambda: group()._allgather_base(torch.ones(3 * size), there),
        lambda: group()._allgather_base(full(3 * size, 1.0), here),
        lambda: group()._reduce_scatter_base(there, torch.ones(3 * size)),
        lambda: group().alltoall_base(torch.ones(size), full(size, 1.0)),
        lambda: group().alltoall([here] * size, [there] * size),
        lambda: group().allgather([[there] * size], [here]),
        lambda: group().allreduce_coalesced([there, here]),
    ):
        torch_ranks.raises(ValueError, call, "one device")
    torch_ranks.raises(ValueError, lambda: group().recv_anysource([there], 0), "host memory")
    torch_ranks.raises(ValueError, lambda: group().send([there], (rank + 1) % size, 5), "host memory")
    assert all_reduce(full(3, 1.0)).values() == [float(size)] * 3


def check_barrier_waits_for_both_streams(rank: int, size: int) -> None:
    """A barrier on a GPU returns after all earlier calls have ended, also those in the side stream."""
    sleeps = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: time.sleep(0.2))
    for device in (GPU, torch.device("cuda")):
        started(full(3, 1.0))
        side, event = group()._side_stream(GPU), Event()
        must("cuLaunchHostFunc", side.handle, ctypes.cast(sleeps, ctypes.c_void_p), ctypes.c_void_p())
        event.record(side)
        options = c10d.BarrierOptions()
        options.device = device
        options.asyncOp = False
        group().barrier(options).wait()
        assert event.query(), f"barrier on {device}"


CHECKS = torch_ranks.checks_of(sys.modules[__name__])
_said: Dict[int, Dict[str, List[str]]] = {}


@pytest.mark.skipif(not FAKE_DRIVER.is_dir(), reason="there is no fake CUDA driver: scripts/build dev builds it")
@pytest.mark.skipif(not hasattr(c10d.AllreduceOptions(), "asyncOp"), reason="this torch has no asyncOp")
@pytest.mark.parametrize("name", CHECKS)
def test_streams(name: str) -> None:
    if not _said:
        variables = {"LD_LIBRARY_PATH": f"{FAKE_DRIVER}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        _said[2] = torch_ranks.results(2, __file__, CHECKS, variables)
    torch_ranks.expect_ok(_said[2][name])
