"""Tests of wrong calls of the backend "tutti": they must give clear error messages, and must not hang."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402

TIMEOUT_S = 20.0
# Keeps the stores alive: the last user of a FileStore deletes its file, even if the next user is just opening it.
_stores: List[Any] = []
BACKEND_ERROR = getattr(dist, "DistBackendError", RuntimeError)  # torch has it since version 2.0


def set_up(rank: int, size: int, folder: str) -> None:
    import tutti.torch  # noqa: F401

    store = torch_ranks.store(folder, size)
    _stores.append(store)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S))


def still_works(size: int) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(size)] * 3


def in_time(function: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Returns the result of the function or raises its exception. Raises TimeoutError if it hangs."""
    said: List[Any] = []

    def call() -> None:
        try:
            said.append((function(), None))
        except Exception as error:
            said.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not said:
        raise TimeoutError(f"hangs for {seconds} s")
    if said[0][1] is not None:
        raise said[0][1]
    return said[0][0]


def fail(*arguments: Any) -> None:
    raise ArithmeticError("a copy that fails")


def group() -> Any:
    return dist.distributed_c10d._get_default_group()


def check_bad_tensors(rank: int, size: int) -> None:
    bad = [
        (torch.ones(3, device="meta"), "meta"),
        (torch.ones(3, 3).to_sparse(), "dense"),
    ]
    for tensor, word in bad:
        for call in (
            lambda: dist.all_reduce(tensor) if word != "dense" else dist.broadcast(tensor, 0),
            lambda: dist.broadcast(tensor, 0),
            lambda: dist.reduce(tensor, 0),
            lambda: dist.all_gather([torch.empty(4, 4) for _ in range(size)], tensor),
            lambda: dist.send(tensor, (rank + 1) % size),
            lambda: dist.scatter(tensor, None, 0) if rank else dist.scatter(tensor, [tensor] * size, 0),
        ):
            torch_ranks.raises(ValueError, call, word)
    still_works(size)


def check_mixed_devices(rank: int, size: int) -> None:
    """One of the tensors is on another device, or has a layout that exists only on the host."""
    here, there = torch.ones(2), torch.ones(2, device="meta")
    row, mixed = [torch.ones(2) for _ in range(size)], [*[torch.ones(2) for _ in range(size - 1)], there]
    flat = torch.ones(2 * size)
    for call in (
        lambda: dist.all_gather_into_tensor(flat, there),
        lambda: dist.all_gather_into_tensor(flat.to("meta"), here),
        lambda: dist.reduce_scatter_tensor(there, flat),
        lambda: dist.all_to_all_single(flat.to("meta"), flat),
        lambda: dist.all_gather(mixed, here),
        lambda: dist.reduce_scatter(here, mixed),
        lambda: dist.all_to_all(row, mixed),
        lambda: dist.all_to_all(mixed, row),
        lambda: dist.gather(there, row if rank == 0 else None),
        lambda: dist.scatter(there, row if rank == 0 else None),
        lambda: group().allreduce_coalesced([here, there]),
        lambda: dist.recv(there, (rank + 1) % size),
        lambda: dist.recv(there),
    ):
        torch_ranks.raises(ValueError, call, "meta")
    if torch.backends.mkldnn.is_available():
        torch_ranks.raises(ValueError, lambda: dist.all_reduce(here.to_mkldnn()), "layout")
    still_works(size)


def check_bad_lengths(rank: int, size: int) -> None:
    three = torch.ones(3)
    for call, word in (
        (lambda: dist.all_gather([torch.empty(3)] * (size + 1), three), "list of"),
        (lambda: dist.all_gather([torch.empty(2) for _ in range(size)], three), "elements"),
        (lambda: dist.all_gather_into_tensor(torch.empty(3 * size + 1), three), "elements"),
        (lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.empty(2 * size + 1)), "elements"),
        (lambda: dist.reduce_scatter(torch.empty(2), [torch.empty(3) for _ in range(size)]), "elements"),
        (lambda: dist.all_to_all_single(torch.empty(size), torch.empty(2 * size)), "length"),
        (lambda: dist.all_to_all_single(torch.empty(size), torch.empty(size), [1], [1]), "split sizes"),
        (lambda: dist.all_to_all_single(torch.empty(()), torch.ones(())), "length"),
    ):
        torch_ranks.raises(ValueError, call, word)
    torch_ranks.raises(Exception, lambda: dist.all_gather([torch.empty(3).int() for _ in range(size)], three))
    still_works(size)


def check_bad_types(rank: int, size: int) -> None:
    for dtype, op in (
        (torch.float32, dist.ReduceOp.BAND),
        (torch.int16, dist.ReduceOp.AVG),
        (torch.bool, dist.ReduceOp.AVG),
    ):
        error = torch_ranks.raises(NotImplementedError, lambda: dist.all_reduce(torch.ones(3).to(dtype), op), str(dtype))
        assert isinstance(error, BACKEND_ERROR)
    # torch 1.13 checks this itself and raises another error.
    mixed = [torch.ones(1)] * size, [torch.ones(1).int()] * size
    torch_ranks.raises((ValueError, RuntimeError), lambda: dist.all_to_all(*mixed))
    still_works(size)


def check_bad_factor(rank: int, size: int) -> None:
    factor = dist._make_nccl_premul_sum(0.5)
    torch_ranks.needs(hasattr(factor, "factor") or factor.__getstate__(), "way to read the factor of a ReduceOp")
    torch_ranks.raises(ValueError, lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), factor), "whole factor")
    still_works(size)


def check_bad_batch(rank: int, size: int) -> None:
    tensors = [torch.ones(3), torch.ones(3, device="meta")]
    torch_ranks.raises(ValueError, lambda: group().allreduce_coalesced(tensors), "meta")
    still_works(size)
    group()._start_coalescing(torch.device("cpu"))
    torch_ranks.raises(RuntimeError, lambda: group()._start_coalescing(torch.device("cpu")), "coalesced already")
    assert group()._end_coalescing(torch.device("cpu")).wait()
    torch_ranks.raises(RuntimeError, lambda: group()._end_coalescing(torch.device("cpu")), "no calls")
    still_works(size)


def check_scatter_is_refused_on_all_ranks(rank: int, size: int) -> None:
    """Only the root can see that the list is wrong, but the others must not wait for their timeout."""
    output, wrong = torch.ones(3), [torch.ones(4) for _ in range(size)]
    if rank == 0:
        torch_ranks.raises(ValueError, lambda: dist.scatter(output, wrong, 0), "3 elements")
    else:
        torch_ranks.raises(BACKEND_ERROR, lambda: dist.scatter(output, None, 0), "rank 0")
    still_works(size)


def check_ranks_disagree(rank: int, size: int) -> None:
    error = torch_ranks.raises(BACKEND_ERROR, lambda: dist.all_reduce(torch.ones(3 + rank)), "disagree")
    assert "rank" in str(error)
    still_works(size)
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    future = work.get_future()
    torch_ranks.raises(RuntimeError, future.wait, "disagree")
    torch_ranks.raises(BACKEND_ERROR, work.wait, "disagree")
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    still_works(size)


def check_errors_reach_cpp(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(torch.ops._c10d_functional, "all_reduce"), "functional collectives in C++")
    output = torch.ops._c10d_functional.all_reduce(torch.ones(3 + rank), "sum", group().group_name)
    torch_ranks.raises(RuntimeError, lambda: torch.ops._c10d_functional.wait_tensor(output), "disagree")
    still_works(size)


def check_timeouts(rank: int, size: int) -> None:
    late = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        error = torch_ranks.raises(BACKEND_ERROR, lambda: dist.barrier(group=late), "rank")
        assert isinstance(error, TimeoutError)
    else:
        time.sleep(2)
    dist.barrier()
    other = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=other, async_op=True)
        torch_ranks.raises(BACKEND_ERROR, lambda: work.wait(timedelta(seconds=0.2)), "0.2 s")
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=other)


def check_options(rank: int, size: int) -> None:
    import tutti.torch

    quick = dist.new_group(pg_options=tutti.torch.Options(transport="tcp", checksum=True))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=quick)
    assert tensor.tolist() == [float(size)] * 3 and quick.communicator.transport != group().communicator.transport


def check_exchange_in_place(rank: int, size: int) -> None:
    for count in (2, 1 << 14, 1 << 20):
        row = [torch.full((count,), 10.0 * rank + q) for q in range(size)]
        dist.all_to_all(row, row)
        assert all(bool((part == 10.0 * q + rank).all()) for q, part in enumerate(row)), count
        row = [torch.full((count,), float(q)) for q in range(size)]
        target = row[1] if rank == 0 else torch.empty(count)  # at the root, this is the input of another rank
        dist.scatter(target, row if rank == 0 else None, 0)
        assert bool((target == rank).all()), count


def check_negated_and_conjugated(rank: int, size: int) -> None:
    imaginary = torch.complex(torch.ones(2), torch.ones(2)).conj()
    for tensor, word in ((torch._neg_view(torch.ones(2)), "resolve_neg()"), (imaginary, "resolve_conj()")):
        torch_ranks.raises(ValueError, lambda: group().broadcast([tensor], 0), word)
        torch_ranks.raises(ValueError, lambda: group().gather([], [tensor], root=(rank + 1) % size), word)
        torch_ranks.raises(ValueError, lambda: group().send([tensor], (rank + 1) % size), word)
    still_works(size)


def check_wait_in_callback(rank: int, size: int) -> None:
    one, other = torch.ones(4), torch.ones(4)
    dist.barrier()
    if rank == 0:
        time.sleep(0.3)  # so that the other ranks' callbacks are added before the end, and run in the thread of futures
    first, second = dist.all_reduce(one, async_op=True), dist.all_reduce(other, async_op=True)
    futures = [first.get_future(), second.get_future()]

    def sum_of_other(future: Any) -> Any:
        second.wait()
        return other.sum()

    assert in_time(lambda: futures[0].then(sum_of_other).wait()) == 4 * size
    assert in_time(lambda: second.get_future().wait())[0] is other


def check_listening_holds_nothing_back(rank: int, size: int) -> None:
    """A receive with a future, whose message arrives late, must not delay calls and futures that come after it."""
    left, right = (rank - 1) % size, (rank + 1) % size
    late = torch.zeros(2)
    listening = dist.irecv(late, left)
    heard = listening.get_future().then(lambda future: late.sum())
    for _ in range(2):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        future = work.get_future()
        in_time(work.wait)
        assert in_time(future.wait)[0].tolist() == [float(size)] * 4
    assert not listening.is_completed()
    dist.barrier()
    dist.send(torch.full((2,), 3.0), right)
    assert in_time(heard.wait) == 6.0 and listening.wait()


def check_tensors_go(rank: int, size: int) -> None:
    """Tensors of works that have ended are released: also those of the last work, and behind a pending receive."""
    left, right = (rank - 1) % size, (rank + 1) % size
    listening = dist.irecv(torch.zeros(1), left)
    gone = []
    for _ in range(5):
        tensor = torch.ones(10)
        gone.append(weakref.ref(tensor))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert work.result()[0] is tensor and work.get_future().value()[0] is tensor
        del tensor, work
    dist.barrier()
    dist.send(torch.ones(1), right)
    listening.wait()
    torch_ranks.needs(not group()._kept._limit, "need to drop works: it waits for the kept ones")
    assert [reference() for reference in gone] == [None] * 5


def check_inference_tensors(rank: int, size: int) -> None:
    with torch.inference_mode():
        mine = [torch.full((2,), 10.0 * rank + q) for q in range(size)]
        others = [torch.zeros(2) for _ in range(size)]
    dist.scatter(others[0], mine if rank == 0 else None)
    assert others[0].tolist() == [float(rank)] * 2
    dist.gather(mine[0], others if rank == 0 else None)
    assert rank or [t.tolist() for t in others] == [[10.0 * q] * 2 for q in range(size)]
    dist.all_to_all(others, mine)
    assert [t.tolist() for t in others] == [[10.0 * q + rank] * 2 for q in range(size)]
    with torch.inference_mode():
        receive = dist.irecv(torch.zeros(2), rank)
    dist.isend(mine[0], rank).wait()
    receive.wait()
    dist.all_gather([others[0]] * size, mine[0])  # uses a flat buffer
    still_works(size)


def check_failed_call_leaves_no_batch(rank: int, size: int) -> None:
    """A call that fails in an open batch must not be sent with the next batch, and must not block other calls."""
    if rank == 0:
        tensor = torch.ones(2)
        group()._start_coalescing(torch.device("cpu"))
        group().allreduce([tensor])
        error = torch_ranks.raises(ValueError, lambda: group().broadcast([torch.ones(2)], size), "root")
        assert error.__traceback__ is not None and tensor.tolist() == [1.0] * 2
        still_works(size)  # while the traceback of the error still exists
    else:
        still_works(size)


def check_pickled(rank: int, size: int) -> None:
    error = torch_ranks.raises(BACKEND_ERROR, lambda: dist.all_reduce(torch.ones(3 + rank)), "disagree")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert (again.code, again.scope, again.rank) == (error.code, error.scope, error.rank)


def check_transfers_and_collectives_are_apart(rank: int, size: int) -> None:
    """A message of a collective must not be taken for a message that the user has sent."""
    tensor, row = torch.zeros(2), [torch.zeros(2) for _ in range(size)]
    if rank == 0:
        work = dist.irecv(tensor, src=1)
        torch_ranks.raises(BACKEND_ERROR, lambda: dist.gather(torch.ones(2), row, 0), "gather")
        torch_ranks.raises(BACKEND_ERROR, work.wait, "gather")
    else:
        dist.gather(torch.full((2,), 1.0 + rank), None, 0)
        if rank == 1:
            dist.send(torch.full((2,), 7.0), 0)
    dist.barrier()


def check_longest_timeout(rank: int, size: int) -> None:
    for timeout in (timedelta.max, timedelta(days=400), timedelta(milliseconds=2**31 - 1)):
        patient = dist.new_group(timeout=timeout)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=patient)
        assert tensor.tolist() == [float(size)] * 3
        dist.destroy_process_group(patient)


def check_end_with_a_receive(rank: int, size: int) -> None:
    """abort() and destroy_process_group() soon end receives for which no message was sent."""
    for source in (rank, (rank + 1) % size):
        for end in ("destroy", "abort"):
            listens = dist.new_group()
            work = dist.irecv(torch.zeros(1), source, group=listens)
            work.get_future()
            dist.barrier(group=listens)
            dist.barrier()  # otherwise an abort could hit the previous barrier
            start = time.monotonic()
            if end == "destroy":
                dist.destroy_process_group(listens)
                listens.shutdown()  # torch 1.13 leaves this to the owner of the group
            else:
                listens.abort()
            torch_ranks.raises(BACKEND_ERROR, lambda: in_time(work.wait))
            assert time.monotonic() - start < TIMEOUT_S / 2, (source, end)
            dist.barrier()
    still_works(size)


def check_abort(rank: int, size: int) -> None:
    third = dist.new_group()
    work = dist.all_reduce(torch.ones(1), group=third, async_op=True) if rank == 0 else None
    if rank == 0:
        time.sleep(0.1)
        third.abort()
        assert work is not None
        torch_ranks.raises(BACKEND_ERROR, work.wait, "abort")
    else:
        time.sleep(1)

        def twice() -> None:  # the first call may already have all that it needs
            dist.all_reduce(torch.ones(1), group=third)
            dist.all_reduce(torch.ones(1), group=third)

        torch_ranks.raises(BACKEND_ERROR, twice, "abort")
    still_works(size)


def check_destroyed(rank: int, size: int) -> None:
    once = dist.new_group()
    dist.destroy_process_group(once)
    if once.communicator is not None:
        once.shutdown()  # torch 1.13 leaves this to the owner of the group
    torch_ranks.raises(ValueError, lambda: once.allreduce([torch.ones(1)]), "destroyed")
    dist.destroy_process_group()
    assert not dist.is_initialized()


def check_made_again(rank: int, size: int) -> None:
    """Creates groups again in the same store. A group must not use the entries of an earlier group."""
    for _ in range(3):
        try:
            set_up(rank, size, os.environ["TEST_FOLDER"])
        except RuntimeError as error:
            again = "store based barrier" not in str(error)  # an error of torch 1.13, which does not reset its counter
            torch_ranks.needs(again, "way to make a group again in the same store")
            raise
        still_works(size)
        dist.destroy_process_group()


def check_made_after_a_failure(rank: int, size: int) -> None:
    """One rank takes part only in the second attempt."""
    folder = os.environ["TEST_FOLDER"]
    store = dist.FileStore(f"{folder}/after_a_failure", size)
    if rank > 0:
        late = timedelta(seconds=1)
        make = tutti_group
        torch_ranks.raises(BACKEND_ERROR, lambda: make(store, rank, size, late), "unique id of rank 0")
        store.add("failed", 1)
    while store.add("failed", 0) < size - 1:
        time.sleep(0.01)
    for members in (size, 2, size, 2):  # torch gives the same names to groups of other sizes
        if rank < members:
            made = tutti_group(store, rank, members, timedelta(seconds=30))
            made.barrier().wait()
            made.shutdown()


def tutti_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from tutti.torch.process_group import ProcessGroupTutti

    return ProcessGroupTutti(store, rank, size, timeout)


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 3])
def test_error(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name)


# ---- tests that start their own processes


def test_no_words_at_exit() -> None:
    """The last reference to a group is deleted at exit, when the names of the modules are already None."""
    script = (
        "import torch, torch.distributed as dist, tutti.torch, os\n"
        "store = dist.FileStore(os.environ['TEST_FOLDER'] + '/store', 1)\n"
        "dist.init_process_group('tutti', store=store, rank=0, world_size=1)\n"
        "class Last:\n"
        "    def __del__(self, drop=tutti.torch.ProcessGroupTutti.__del__):\n"
        "        module.sys = None\n"
        "        drop(self.group)\n"
        "from tutti.torch import process_group as module\n"
        "Last.group = dist.distributed_c10d._get_default_group()\n"
        "last = Last()\n"
        "del last\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TEST_FOLDER=folder)
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_missing_ranks_are_named() -> None:
    script = (
        "import torch.distributed as dist, tutti.torch, os, datetime\n"
        "store = dist.FileStore(os.environ['TEST_FOLDER'] + '/store', 3)\n"
        "dist.init_process_group('tutti', store=store, rank=0, world_size=3, timeout=datetime.timedelta(seconds=1))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TEST_FOLDER=folder)
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "rank 1, rank 2" in done.stderr, done.stderr
