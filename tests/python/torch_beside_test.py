"""Tests of concurrent calls of the backend "tutti": from several threads, receives from any source, and thousands of
calls at the same time. Also tests tensors with other memory layouts."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402
from torch_ranks import same, set_up, tear_down  # noqa: E402, F401


def check_any_source_beside_others(rank: int, size: int) -> None:
    """A receive from any source must not take a message of another call, and must not disturb other calls."""
    if not hasattr(dist.distributed_c10d._get_default_group().communicator, "next_sender"):
        return
    late = torch.zeros(1)
    work = dist.irecv(late) if rank == 0 else None
    group = dist.distributed_c10d._get_default_group()
    for turn in range(30):
        tensors = [torch.full((3,), float(turn)), torch.ones(2)]
        group.allreduce_coalesced(tensors).wait()
        same(tensors[0], torch.full((3,), float(turn * size)))
        row = [torch.zeros(2) for _ in range(size)]
        dist.gather(torch.full((2,), float(rank + turn)), row if rank == 0 else None)
        if rank == 0:
            same(torch.stack(row), torch.arange(float(size)).add(turn).repeat_interleave(2).view(size, 2))
        dist.all_to_all(row, [torch.full((2,), 10.0 * rank + q) for q in range(size)])
        same(torch.stack(row), torch.arange(0.0, 10 * size, 10).add(rank).repeat_interleave(2).view(size, 2))
        box: List[Any] = [None] * size
        dist.gather_object({"rank": rank}, box if rank == 0 else None)
        assert rank or box == [{"rank": q} for q in range(size)]
    if rank == 0:
        named = torch.zeros(1)
        receive = dist.irecv(named, src=1)
        dist.barrier()
        receive.wait()
        same(named, torch.full((1,), 5.0))
        assert not work.is_completed()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.full((1,), 5.0), 0)
    dist.barrier()
    if rank == size - 1:
        dist.send(torch.full((1,), 9.0), 0)
    if rank == 0:
        work.wait()
        same(late, torch.full((1,), 9.0))
    dist.barrier()  # the next check also receives from any source, so no message may be left


def check_any_source_looks_again(rank: int, size: int) -> None:
    """A receive from any source finds a message, but a receive from a named rank takes it first. Then the former must
    accept a message from another sender."""
    group = dist.distributed_c10d._get_default_group()
    if size < 3 or not hasattr(group.communicator, "next_sender"):
        return
    if rank != 0:
        if rank == 1:
            dist.send(torch.full((1,), 5.0), 0)
        dist.barrier()
        if rank == 2:
            dist.send(torch.full((1,), 9.0), 0)
        dist.barrier()
        return
    named, late, taken = torch.zeros(1), torch.zeros(1), threading.Event()
    real = group._open

    class Between:
        """Replaces the communicator. After next_sender() has found a sender, a recv() takes that message first."""

        def next_sender(self, timeout_ms: int) -> int:
            found = real().next_sender(timeout_ms)
            if not taken.is_set():
                dist.recv(named, src=found)
                taken.set()
            return found

    def opened() -> Any:
        looks = threading.current_thread().name == "tutti receives" and not taken.is_set()
        return Between() if looks and sys._getframe(1).f_code.co_name in ("_run", "_receive") else real()

    group._open = opened
    try:
        work = dist.irecv(late)
        assert taken.wait(10)
        same(named, torch.full((1,), 5.0))
        dist.barrier()
        work.wait(timedelta(seconds=10))
        same(late, torch.full((1,), 9.0))
    finally:
        del group._open
        dist.barrier()


def check_threads(rank: int, size: int) -> None:
    """Each thread has its own batches and its own group."""
    groups = [dist.new_group() for _ in range(3)]
    shared = dist.distributed_c10d._get_default_group()
    wrong: List[Any] = []

    def use(group: Any, of: int) -> None:
        try:
            for turn in range(40):
                tensors = [torch.full((4,), float(of + turn)) for _ in range(3)]
                group.allreduce_coalesced(tensors).wait()
                if of == 0:  # one thread sends messages and another calls collectives
                    group = shared
                for tensor in tensors:
                    same(tensor, torch.full((4,), float((of + turn) * size)))
        except Exception as error:
            wrong.append(error)

    def send() -> None:
        try:
            for turn in range(40):
                got = torch.zeros(2)
                receive = dist.irecv(got, (rank - 1) % size, tag=7)
                dist.isend(torch.full((2,), float(turn)), (rank + 1) % size, tag=7).wait()
                receive.wait()
                same(got, torch.full((2,), float(turn)))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(group, i)) for i, group in enumerate(groups)]
    threads.append(threading.Thread(target=send))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_many_under_way(rank: int, size: int) -> None:
    count = 6000
    tensors = [torch.full((1,), float(i)) for i in range(count)]
    right = (rank + 1) % size
    sends = [dist.isend(tensor, right) for tensor in tensors]
    got = [torch.zeros(1) for _ in range(count)]
    for tensor in got:
        dist.recv(tensor, (rank - 1) % size)
    for work in sends:
        work.wait()
    same(torch.cat(got), torch.arange(float(count)))
    sums = [torch.ones(1) for _ in range(count)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in sums]:
        work.wait()
    same(torch.cat(sums), torch.full((count,), float(size)))


def check_channels_last(rank: int, size: int) -> None:
    for shape, order in (((2, 3, 4, 5), torch.channels_last), ((2, 3, 2, 2, 2), torch.channels_last_3d)):
        mine = torch.arange(float(torch.Size(shape).numel())).view(shape).add(rank).contiguous(memory_format=order)
        expected = sum(mine - rank + q for q in range(size))
        summed = mine.clone(memory_format=torch.preserve_format)
        dist.all_reduce(summed)
        same(summed, expected)
        told = torch.zeros_like(mine)
        assert not told.is_contiguous()
        receive = dist.irecv(told, (rank - 1) % size)
        dist.isend(mine, (rank + 1) % size).wait()
        receive.wait()
        same(told, mine - rank + (rank - 1) % size)
        own = torch.zeros_like(mine)
        receive = dist.irecv(own, rank)
        dist.isend(mine, rank).wait()
        receive.wait()
        same(own, mine)
        dist.broadcast(told, 0)
        same(told, mine - rank + size - 1)


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 3])
def test_beside(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name)
