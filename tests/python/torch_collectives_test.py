"""Tests of every collective of the torch.distributed backend "tutti", with 2, 3 and 4 ranks and expected values."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402
from torch_ranks import same, set_up, tear_down  # noqa: E402, F401

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.complex64, torch.complex128]


def values(rank: int, dtype: Any, count: int = 7) -> Any:
    """Small whole numbers, so that every order of addition gives the same sum."""
    numbers = torch.tensor([(rank * 3 + i) % 4 + 1 for i in range(count)])
    return numbers % 2 == 0 if dtype is torch.bool else numbers.to(dtype)


def reduced(op: Any, tensors: List[Any]) -> Any:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        if op == dist.ReduceOp.SUM:
            result = result | tensor if tensor.dtype is torch.bool else result + tensor
        elif op == dist.ReduceOp.PRODUCT:
            result = result & tensor if tensor.dtype is torch.bool else result * tensor
        elif op == dist.ReduceOp.MIN:
            result = result & tensor if tensor.dtype is torch.bool else torch.minimum(result, tensor)
        elif op == dist.ReduceOp.MAX:
            result = result | tensor if tensor.dtype is torch.bool else torch.maximum(result, tensor)
        elif op == dist.ReduceOp.BAND:
            result = result & tensor
        elif op == dist.ReduceOp.BOR:
            result = result | tensor
        elif op == dist.ReduceOp.BXOR:
            result = result ^ tensor
    return result


def check_all_reduce(rank: int, size: int) -> None:
    plain = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    bits = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    for dtype in FLOATS + INTEGERS + [torch.bool]:
        for op in plain + (bits if dtype in INTEGERS + [torch.bool] else []):
            tensor = values(rank, dtype)
            dist.all_reduce(tensor, op)
            same(tensor, reduced(op, [values(r, dtype) for r in range(size)]))
    for dtype in (torch.complex64, torch.complex128):
        tensor = values(rank, dtype) * (1 + 2j)
        dist.all_reduce(tensor)
        same(tensor, sum(values(r, dtype) for r in range(size)) * (1 + 2j))


def check_all_reduce_unsigned(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(torch, "uint16"), "unsigned types but uint8")
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        tensor = values(rank, torch.int64).to(dtype)
        dist.all_reduce(tensor)
        expected = sum(values(r, torch.int64) for r in range(size)).to(dtype)
        assert tensor.tolist() == expected.tolist()


def check_averages(rank: int, size: int) -> None:
    for dtype in FLOATS:
        tensor = torch.full((5,), float(rank * size), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, torch.full((5,), size * (size - 1) / 2, dtype=dtype))


def check_premul_sum(rank: int, size: int) -> None:
    half = dist._make_nccl_premul_sum(0.5)
    if not hasattr(half, "factor") and half.__getstate__() is None:
        torch_ranks.raises(NotImplementedError, lambda: dist.all_reduce(torch.ones(3), half), "factor")
        torch_ranks.needs(False, "way to read the factor of a ReduceOp")
    for dtype in FLOATS:
        tensor = values(rank, dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        same(tensor, sum(values(r, dtype) * 0.5 for r in range(size)))
    tensor = values(rank, torch.int32)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(3.0))
    same(tensor, sum(values(r, torch.int32) * 3 for r in range(size)).to(torch.int32))


def check_float8(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(torch, "float8_e4m3fn"), "float8 types")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.ones(9).to(dtype)
        dist.distributed_c10d._get_default_group().allreduce([tensor]).wait()
        assert tensor.float().tolist() == [float(size)] * 9
        outputs = [torch.zeros(3).to(dtype) for _ in range(size)]
        dist.all_gather(outputs, torch.full((3,), float(rank)).to(dtype))
        assert [output.float()[0].item() for output in outputs] == [float(r) for r in range(size)]


def check_sparse(rank: int, size: int) -> None:
    dense = torch.zeros(10, 3)
    dense[rank], dense[9] = rank + 1.0, 2.0
    for work in (False, True):
        tensor = dense.to_sparse(1)
        made = dist.all_reduce(tensor, async_op=work)
        expected = torch.zeros(10, 3)
        for r in range(size):
            expected[r] += r + 1.0
            expected[9] += 2.0
        same(tensor.to_dense(), expected)
        if work:
            same(made.get_future().wait()[0].to_dense(), expected)
    torch_ranks.raises(NotImplementedError, lambda: dist.all_reduce(dense.to_sparse(), dist.ReduceOp.MAX), "sparse")
    embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(6, 2, sparse=True))
    embedding(torch.tensor([rank, 5])).sum().backward()
    gradient = embedding.module.weight.grad.to_dense()
    same(gradient[5], torch.ones(2))
    torch.testing.assert_close(gradient[0], torch.full((2,), 1.0 / size))


def check_asynchronous(rank: int, size: int) -> None:
    tensors = [torch.full((1000,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, work in reversed(list(enumerate(works))):
        assert work.wait() and work.is_completed() and work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensors[i]
        same(tensors[i], torch.full((1000,), float(sum(r + i for r in range(size)))))


def check_futures(rank: int, size: int) -> None:
    tensor = torch.full((1000,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    halves = work.get_future().then(lambda future: future.value()[0] / 2)
    same(halves.wait(), torch.full((1000,), sum(range(size)) / 2))
    assert work.wait() and work.get_future() is work.get_future()
    assert work.get_future().wait()[0] is tensor
    other = dist.all_reduce(tensor, async_op=True)
    other.wait()
    assert other.get_future().wait()[0] is tensor


def check_dropped_work(rank: int, size: int) -> None:
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)  # no code waits for it: the group keeps what the call needs
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(size)))


def check_broadcast_and_reduce(rank: int, size: int) -> None:
    for root in range(size):
        for dtype in FLOATS + INTEGERS + OTHERS:
            tensor = values(rank, dtype)
            dist.broadcast(tensor, root)
            same(tensor, values(root, dtype))
        for dtype in (torch.float32, torch.int16):
            tensor = values(rank, dtype)
            dist.reduce(tensor, root)
            if rank == root:
                same(tensor, reduced(dist.ReduceOp.SUM, [values(r, dtype) for r in range(size)]))


def check_all_gather(rank: int, size: int) -> None:
    for dtype in FLOATS + INTEGERS + OTHERS:
        expected = [values(r, dtype) for r in range(size)]
        for outputs in (
            [torch.empty(7, dtype=dtype) for _ in range(size)],
            list(torch.empty(size, 7, dtype=dtype)),  # contiguous
            list(torch.empty(size, 2, 7, dtype=dtype)[:, 1]),  # with gaps
        ):
            dist.all_gather(outputs, values(rank, dtype))
            for output, value in zip(outputs, expected):
                same(output, value)
        output = torch.empty(size * 7, dtype=dtype)
        dist.all_gather_into_tensor(output, values(rank, dtype))
        same(output, torch.cat(expected))


def check_all_gather_in_place(rank: int, size: int) -> None:
    for count in (3, 200_000):
        output = torch.zeros(size, count)
        output[rank] = rank + 1.0
        dist.all_gather_into_tensor(output, output[rank])
        same(output, torch.arange(1.0, size + 1).repeat_interleave(count).view(size, count))
        outputs = list(torch.zeros(size, count))
        outputs[rank].fill_(rank + 1.0)
        dist.all_gather(outputs, outputs[rank])
        same(torch.stack(outputs), output)
        across = torch.full((size * count,), -1.0)
        # This input overlaps the output blocks of other ranks. So it must be read before they are written.
        across[1 : count + 1] = rank
        dist.all_gather_into_tensor(across, across[1 : count + 1])
        same(across, torch.arange(float(size)).repeat_interleave(count))


def check_all_gather_anywhere(rank: int, size: int) -> None:
    counts = [r * 3 for r in range(size)]
    outputs = [torch.empty(count) for count in counts]
    dist.all_gather(outputs, torch.full((counts[rank],), float(rank)))
    for r in range(size):
        same(outputs[r], torch.full((counts[r],), float(r)))
    big = [torch.empty(300_000) for _ in range(size)]
    work = dist.all_gather(big, torch.full((300_000,), float(rank)), async_op=True)
    work.wait()
    for r in range(size):
        same(big[r], torch.full((300_000,), float(r)))
    one = torch.empty(4)
    dist.all_gather([one] * size, torch.full((4,), float(rank)))  # the last rank's value stays
    same(one, torch.full((4,), float(size - 1)))


def check_reduce_scatter(rank: int, size: int) -> None:
    for count in (5, 300_000):
        rows = [torch.stack([values(r + q, torch.float32, count) for q in range(size)]) for r in range(size)]
        expected = sum(rows[r][rank] for r in range(size))
        for inputs in (list(rows[rank].clone()), [row.clone() for row in rows[rank]]):
            output = torch.empty(count)
            dist.reduce_scatter(output, inputs)
            same(output, expected)
            same(torch.stack(inputs), rows[rank])
        output = torch.empty(count)
        dist.reduce_scatter_tensor(output, rows[rank].clone())
        same(output, expected)
        dist.reduce_scatter_tensor(output, rows[rank].clone(), dist.ReduceOp.AVG)
        assert torch.allclose(output, expected / size)
        inplace = rows[rank].clone()
        dist.reduce_scatter_tensor(inplace[rank], inplace)
        same(inplace[rank], expected)
    counts = [r + 1 for r in range(size)]
    output = torch.empty(counts[rank])
    dist.reduce_scatter(output, [torch.full((count,), float(rank)) for count in counts])
    same(output, torch.full((counts[rank],), float(sum(range(size)))))


def check_all_to_all(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.int16, torch.complex64):
        output = torch.empty(size * 2, dtype=dtype)
        dist.all_to_all_single(output, torch.tensor([rank * 10 + q for q in range(size) for _ in range(2)]).to(dtype))
        same(output, torch.tensor([q * 10 + rank for q in range(size) for _ in range(2)]).to(dtype))
        outputs = [torch.empty(q + rank, 2, dtype=dtype) for q in range(size)]
        inputs = [torch.full((q + rank, 2), rank * 10 + q).to(dtype) for q in range(size)]
        dist.all_to_all(outputs, inputs)
        for q in range(size):
            same(outputs[q], torch.full((q + rank, 2), q * 10 + rank).to(dtype))
    sent = [(rank + q) % 3 for q in range(size)]
    received = sent  # the table is symmetric
    input = torch.cat([torch.full((count, 5), float(rank * 10 + q)) for q, count in enumerate(sent)])
    output = torch.empty(sum(received), 5)
    dist.all_to_all_single(output, input, received, sent)
    same(output, torch.cat([torch.full((count, 5), float(q * 10 + rank)) for q, count in enumerate(received)]))


def check_gather_and_scatter(rank: int, size: int) -> None:
    for root in range(size):
        for dtype in (torch.float32, torch.bool, torch.int16):
            outputs = [torch.empty(7, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(values(rank, dtype), outputs, root)
            for r, output in enumerate(outputs or []):
                same(output, values(r, dtype))
            output = torch.empty(7, dtype=dtype)
            dist.scatter(output, [values(r, dtype) for r in range(size)] if rank == root else None, root)
            same(output, values(rank, dtype))


def check_objects(rank: int, size: int) -> None:
    gathered: List[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank * 100})
    assert gathered == [{"rank": r, "text": "x" * r * 100} for r in range(size)]
    there: Any = [None] * size if rank == 0 else None
    dist.gather_object(rank * 2, there, 0)
    assert rank or there == [r * 2 for r in range(size)]
    objects = [rank, "word", None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(objects, 1)
    assert objects == [1, "word", None]
    mine: List[Any] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]


def check_transfers(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for tag in (0, 5):
        for dtype in FLOATS + INTEGERS + OTHERS:
            tensor = torch.empty(7, dtype=dtype)
            work = dist.isend(values(rank, dtype), right, tag=tag)
            assert dist.recv(tensor, left, tag=tag) == left
            work.wait()
            same(tensor, values(left, dtype))
    big = torch.empty(1_000_000)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((1_000_000,), float(rank)), right), dist.P2POp(dist.irecv, big, left)]
    )
    for work in works:
        work.wait()
    same(big, torch.full((1_000_000,), float(left)))
    tensor = torch.empty(3)
    receive = dist.irecv(tensor, rank)
    dist.isend(torch.full((3,), 4.0), rank).wait()
    receive.wait()
    same(tensor, torch.full((3,), 4.0))


def check_tags_are_compared(rank: int, size: int) -> None:
    tensor = torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(2), 1, tag=3)
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        work = dist.irecv(tensor, 0, tag=4)
        torch_ranks.raises(RuntimeError, work.wait, "tag 4", "tag 3", "order")
        dist.recv(tensor, 0)
        same(tensor, torch.ones(2))


def check_any_source(rank: int, size: int) -> None:
    if not hasattr(dist.distributed_c10d._get_default_group().communicator, "next_sender"):
        return
    if rank == 0:
        seen = set()
        for i in range(2 * (size - 1)):
            tensor = torch.empty(2)
            source = dist.recv(tensor, tag=i % 2 * 0)
            same(tensor, torch.full((2,), float(source)))
            seen.add(source)
        assert seen == set(range(1, size))
        work = dist.irecv(tensor)
        dist.barrier()
        work.wait()
        assert work._source_rank() == 1
    else:
        dist.send(torch.full((2,), float(rank)), 0)
        dist.send(torch.full((2,), float(rank)), 0)
        dist.barrier()
        if rank == 1:
            dist.send(torch.full((2,), float(rank)), 0)
    dist.barrier()  # otherwise the next check's message could reach rank 0 first


def check_coalescing(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(dist, "_coalescing_manager"), "coalescing of this kind")
    tensors = [torch.full((3 + i,), float(rank)) for i in range(5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, float(sum(range(size)))))
    outputs = [torch.empty(size * 2) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, torch.full((2,), float(rank + i)))
    manager.wait()
    for i, output in enumerate(outputs):
        same(output, torch.arange(float(size)).repeat_interleave(2) + i)


def check_mixed_batch(rank: int, size: int) -> None:
    mixed, gathered = torch.ones(4), [torch.empty(2) for _ in range(size)]
    group = dist.distributed_c10d._get_default_group()
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([mixed])
    group.allgather([gathered], [torch.full((2,), float(rank))])
    group.send([torch.full((2,), 7.0)], (rank + 1) % size, 0)
    received = torch.empty(2)
    group.recv([received], (rank - 1) % size, 0)
    group._end_coalescing(torch.device("cpu")).wait()
    same(mixed, torch.full((4,), float(size)))
    same(torch.stack(gathered), torch.arange(float(size)).repeat_interleave(2).view(size, 2))
    same(received, torch.full((2,), 7.0))


def check_coalesced_calls(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    tensors = [torch.ones(4), torch.ones(2, 2)]
    group.allreduce_coalesced(tensors).wait()
    assert all(torch.equal(t, torch.full_like(t, float(size))) for t in tensors)
    outputs, inputs = [torch.empty(2), torch.empty(1)], [torch.ones(2 * size), torch.ones(size)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    assert all(torch.equal(t, torch.full_like(t, float(size))) for t in outputs)
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    assert all(t.eq(r).all() for r, row in enumerate(lists) for t in row)


def check_barriers(rank: int, size: int) -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.distributed_c10d._get_default_group().monitored_barrier(timedelta(seconds=30))


def check_groups(rank: int, size: int) -> None:
    evens = dist.new_group(list(range(0, size, 2)))
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    tensor = torch.ones(3)
    if rank % 2 == 0:
        dist.all_reduce(tensor, group=evens)
        same(tensor, torch.full((3,), float((size + 1) // 2)))
        assert dist.get_rank(evens) == rank // 2 and dist.get_world_size(evens) == (size + 1) // 2
    for r, pair in enumerate(pairs):
        if rank in (r, (r + 1) % size):
            tensor = torch.full((2,), float(rank))
            dist.broadcast(tensor, r, group=pair)
            same(tensor, torch.full((2,), float(r)))
    dist.barrier()
    if rank % 2 == 0:
        dist.destroy_process_group(evens)
    alone = [dist.new_group([r]) for r in range(size)][rank]
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=alone)
    same(tensor, torch.ones(2))


def check_several_machines(rank: int, size: int) -> None:
    """Ranks on different machines connect to an address of rank 0 that is reachable from other machines."""
    import tutti.torch.rendezvous as rendezvous

    outward = rendezvous._outward_address
    if outward("localhost", []) is None:
        return  # this machine has no network
    machine, rendezvous._machine = rendezvous._machine, lambda: f"machine of {rank}"
    try:
        apart = dist.new_group()
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=apart)
        same(tensor, torch.full((3,), float(size)))
        rendezvous._outward_address = lambda host, seen: None
        torch_ranks.raises(RuntimeError, dist.new_group, "TUTTI_INTERFACE")
    finally:
        rendezvous._machine, rendezvous._outward_address = machine, outward


def check_names(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    assert dist.get_backend() == "tutti" and group.name() == "tutti"
    if hasattr(dist.ProcessGroup, "group_desc"):
        assert group.group_name and group.group_desc == "default_pg"
    assert (group.rank(), group.size()) == (rank, size)
    assert torch.device("cpu") in group._device_types


def check_registered_memory(rank: int, size: int) -> None:
    import tutti.torch

    tensor = tutti.torch.empty(3, 5)
    same(tensor, torch.zeros(3, 5))
    tensor += rank
    dist.all_reduce(tensor)
    same(tensor, torch.full((3, 5), float(sum(range(size)))))
    assert tutti.torch.empty(4, dtype=torch.int16).dtype is torch.int16


def check_empty(rank: int, size: int) -> None:
    tensor = torch.empty(0)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty(0) for _ in range(size)], tensor)
    dist.all_gather_into_tensor(torch.empty(0), tensor)
    dist.all_to_all_single(torch.empty(0), tensor)
    dist.reduce_scatter(torch.empty(0), [torch.empty(0) for _ in range(size)])


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_collective(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name)
