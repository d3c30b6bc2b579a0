"""Tests of tensors that share memory, that are not contiguous, or that are several in one call. The expected values are
those of gloo; where gloo refuses or gives wrong values, those of the same call with contiguous tensors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402
from torch_ranks import same, set_up, tear_down  # noqa: E402, F401


def group() -> Any:
    return dist.distributed_c10d._get_default_group()


def values(rank: int, *shape: int) -> Any:
    return torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * rank


def column(tensor: Any) -> Any:
    """The same values with a gap after each element. The gaps contain -1."""
    return torch.stack([tensor, torch.full_like(tensor, -1)], -1)[..., 0]


def transposed(tensor: Any) -> Any:
    """The same values, with the elements of the first two dimensions in the other order in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def channels_last(tensor: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else transposed(tensor)


# In each, the ranks' tensors have different layouts: the elements must be matched by their index, not by their address.
LAYOUTS: List[Callable[[Any, int], Any]] = [
    lambda tensor, rank: column(tensor),
    lambda tensor, rank: transposed(tensor) if rank == 0 else tensor,
    lambda tensor, rank: channels_last(tensor) if rank == 1 else tensor,
    lambda tensor, rank: [column, transposed, channels_last, lambda same: same][rank % 4](tensor),
]
SHAPE = (2, 3, 4, 5)


def kept_gaps(tensor: Any) -> None:
    """Checks that the gaps of column() were not written to."""
    if tensor.stride(-1) == 2:
        assert tensor.as_strided(tensor.shape, tensor.stride(), 1).eq(-1).all()


def check_collectives_in_place(rank: int, size: int) -> None:
    for lay_out in LAYOUTS:
        for asynchronous in (False, True):
            tensor = lay_out(values(rank, *SHAPE), rank)
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if work is not None:
                work.wait()
            same(tensor, sum(values(r, *SHAPE) for r in range(size)))
            kept_gaps(tensor)
        tensor = lay_out(values(rank, *SHAPE), rank)
        dist.broadcast(tensor, size - 1)
        same(tensor, values(size - 1, *SHAPE))
        tensor = lay_out(values(rank, *SHAPE), rank)
        dist.reduce(tensor, 1)
        same(tensor, sum(values(r, *SHAPE) for r in range(size)) if rank == 1 else values(rank, *SHAPE))
        kept_gaps(tensor)


def check_lists(rank: int, size: int) -> None:
    for lay_out in LAYOUTS:
        mine = lay_out(values(rank, *SHAPE), rank)
        for empty in (lambda: lay_out(torch.zeros(SHAPE), rank), lambda: torch.zeros(SHAPE)):
            outputs = [empty() for _ in range(size)]
            dist.all_gather(outputs, mine)
            for r in range(size):
                same(outputs[r], values(r, *SHAPE))
            outputs = [empty() for _ in range(size)]
            dist.gather(mine, outputs if rank == 1 else None, 1)
            for r in range(size):
                same(outputs[r], values(r, *SHAPE) if rank == 1 else torch.zeros(SHAPE))
            inputs = [lay_out(values(10 * rank + r, *SHAPE), rank) for r in range(size)]
            output = empty()
            dist.scatter(output, inputs if rank == 1 else None, 1)
            same(output, values(10 + rank, *SHAPE))
            output = empty()
            dist.reduce_scatter(output, inputs)
            same(output, sum(values(10 * r + rank, *SHAPE) for r in range(size)))
            outputs = [empty() for _ in range(size)]
            dist.all_to_all(outputs, inputs)
            for r in range(size):
                same(outputs[r], values(10 * r + rank, *SHAPE))
                kept_gaps(outputs[r])


def check_one_tensor_of_all(rank: int, size: int) -> None:
    shape = (2 * size, *SHAPE[1:])
    for lay_out in LAYOUTS:
        gathered = lay_out(torch.zeros(size * SHAPE[0], *SHAPE[1:]), rank)
        dist.all_gather_into_tensor(gathered, lay_out(values(rank, *SHAPE), rank))
        same(gathered, torch.cat([values(r, *SHAPE) for r in range(size)]))
        scattered = lay_out(torch.zeros(SHAPE), rank)
        dist.reduce_scatter_tensor(scattered, lay_out(values(rank, *shape), rank))
        same(scattered, sum(values(r, *shape) for r in range(size))[2 * rank : 2 * rank + 2])
        exchanged = lay_out(torch.zeros(shape), rank)
        dist.all_to_all_single(exchanged, lay_out(values(rank, *shape), rank))
        same(exchanged, torch.cat([values(r, *shape)[2 * rank : 2 * rank + 2] for r in range(size)]))
        counts = [1 if r == 0 else 2 for r in range(size)]  # rows that each rank sends to rank r
        sent = values(rank, sum(counts), 3)
        exchanged = lay_out(torch.zeros(size * counts[rank], 3), rank)
        dist.all_to_all_single(exchanged, transposed(sent), [counts[rank]] * size, counts)
        begin = sum(counts[:rank])
        same(exchanged, torch.cat([values(r, sum(counts), 3)[begin : begin + counts[rank]] for r in range(size)]))


def check_messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for lay_out in LAYOUTS:
        for tag in (0, 5):
            for source in (left, None):
                tensor = lay_out(torch.zeros(SHAPE), rank)
                sent = dist.isend(lay_out(values(rank, *SHAPE), rank), right, tag=tag)
                assert dist.recv(tensor, source, tag=tag) == left
                same(tensor, values(left, *SHAPE))
                kept_gaps(tensor)
                sent.wait()
                dist.barrier()  # the next message must not overtake a receive from any source
        tensor = lay_out(torch.zeros(SHAPE), rank)
        received = dist.irecv(tensor, rank)
        dist.isend(column(values(rank, *SHAPE)), rank).wait()
        received.wait()
        same(tensor, values(rank, *SHAPE))
        tensor = lay_out(torch.zeros(SHAPE), rank)
        operations = [dist.P2POp(dist.isend, column(values(rank, *SHAPE)), right), dist.P2POp(dist.irecv, tensor, left)]
        works = dist.batch_isend_irecv(operations)
        assert len(works) == 2
        for work in works:
            work.wait()
        same(tensor, values(left, *SHAPE))


def check_a_message_is_read_when_it_is_sent(rank: int, size: int) -> None:
    """The send of a tensor that is not contiguous sends a copy."""
    if rank == 0:
        tensor = column(values(0, 3))
        work = dist.isend(tensor, 1)
        tensor.fill_(7)
        work.wait()
    if rank == 1:
        got = torch.zeros(3)
        dist.recv(got, 0)
        same(got, values(0, 3))


def check_elements_in_common(rank: int, size: int) -> None:
    """A tensor whose elements share memory can be sent, but not received."""
    shared = torch.ones(1).expand(4)
    told = shared if rank == 0 else torch.zeros(4)
    dist.broadcast(told, 0)
    same(told, torch.ones(4))
    outputs = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(outputs, shared)
    same(outputs[-1], torch.ones(4))
    row = [torch.ones(4) for _ in range(size)]
    for call in (
        lambda: dist.all_reduce(shared),
        lambda: dist.broadcast(shared, (rank + 1) % size),
        lambda: dist.recv(shared, (rank + 1) % size),
        lambda: dist.all_gather([*row[1:], shared], row[0]),
        lambda: dist.reduce_scatter(shared, row),
        lambda: dist.all_to_all([*row[1:], shared], row),
        lambda: dist.all_gather_into_tensor(torch.ones(1).expand(4 * size), row[0]),
        lambda: group().allreduce_coalesced([row[0], shared]),
    ):
        torch_ranks.raises(ValueError, call, "clone")
    dist.barrier()


def check_coalesced_tensors_that_overlap(rank: int, size: int) -> None:
    total = float(sum(range(1, size + 1)))
    twice = torch.full((3,), rank + 1.0)
    group().allreduce_coalesced([twice, twice]).wait()
    same(twice, torch.full((3,), total))
    parts = torch.full((4,), rank + 1.0)
    group().allreduce_coalesced([parts[:3], parts[1:]]).wait()
    same(parts, torch.full((4,), total))
    columns = torch.full((4, 2), rank + 1.0)
    group().allreduce_coalesced([columns[:, 0], columns[:, 1]]).wait()
    same(columns, torch.full((4, 2), total))


def check_coalesced_calls_that_overlap(rank: int, size: int) -> None:
    """The result of one call would change the other one."""
    torch_ranks.needs(hasattr(group(), "allgather_into_tensor_coalesced"), "allgather_into_tensor_coalesced")
    pool, out = torch.ones(8 * size), torch.zeros(4 * size)
    gather, scatter = group().allgather_into_tensor_coalesced, group().reduce_scatter_tensor_coalesced
    for call, words in (
        (lambda: gather([out, out], [pool[:4], pool[4:8]]), "two of the outputs"),
        (lambda: gather([out, pool[: 4 * size]], [pool[:4], out[:4]]), "the input of call"),
        (lambda: scatter([pool[:4], pool[2:6]], [out, out]), "two of the outputs"),
        (lambda: scatter([pool[:4], out[:4]], [out, pool[: 4 * size]]), "the input of call"),
    ):
        torch_ranks.raises(ValueError, call, words)
    halves = torch.zeros(2, 4 * size)  # an input may be the rank's own part of its output
    for number in range(2):
        halves[number, 4 * rank : 4 * rank + 4] = rank + 10 * number
    gather(list(halves), [half[4 * rank : 4 * rank + 4] for half in halves]).wait()
    for number in range(2):
        same(halves[number], torch.cat([torch.full((4,), r + 10.0 * number) for r in range(size)]))


def check_several_tensors(rank: int, size: int) -> None:
    total = float(sum(range(1, size + 1)))
    one, other = torch.full((2,), rank + 1.0), column(torch.full((2,), 10.0 * (rank + 1)))
    group().allreduce([one, other], dist.AllreduceOptions()).wait()
    same(one, torch.full((2,), 11 * total))
    same(other, one)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    one, other = torch.full((2,), rank + 1), torch.full((2,), -rank)
    group().allreduce([one, other], options).wait()
    same(other, torch.full((2,), size))
    options.reduceOp = dist.ReduceOp.AVG
    torch_ranks.raises(RuntimeError, lambda: group().allreduce([one, other], options), "pass one tensor")
    torch_ranks.raises(ValueError, lambda: group().allreduce([torch.ones(2), torch.ones(3)]), "equal shapes")
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = size - 1, 1
    tensors = [values(10 * rank + number, 3) for number in range(3)]
    group().broadcast(tensors, options).wait()
    for tensor in tensors:
        same(tensor, values(10 * (size - 1) + 1, 3))
    options.rootTensor = 3
    torch_ranks.raises(ValueError, lambda: group().broadcast(tensors, options), "no tensor 3")
    inputs = [values(10 * rank + number, 3) for number in range(2)]
    outputs = [[torch.zeros(3) for _ in range(2 * size)] for _ in range(2)]
    group().allgather(outputs, inputs).wait()
    for targets in outputs:
        same(torch.cat(targets), torch.cat([values(10 * r + number, 3) for r in range(size) for number in range(2)]))
    torch_ranks.raises(ValueError, lambda: group().allgather(outputs[:1], inputs), "2 lists of")


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 3])
def test_layouts(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name)
