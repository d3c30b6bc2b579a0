"""Tests of reconfigure(): the ranks of a process group change while the program runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # for the ranks; pytest has it from conftest.py
import torch_ranks  # noqa: E402
from torch_ranks import set_up, tear_down  # noqa: E402, F401
from patience import PATIENCE_S  # noqa: E402

LIMIT = timedelta(seconds=PATIENCE_S)


def unconnected(rank: int, size: int) -> Any:
    from tutti.torch import ProcessGroupTutti

    return ProcessGroupTutti(dist.HashStore(), rank, size, LIMIT, enable_reconfigure=True)


def handles_of_all(group: Any, size: int) -> List[str]:
    handles: List[Any] = [None] * size
    dist.all_gather_object(handles, group.get_reconfigure_handle())
    return handles


def reconfigure(group: Any, uuid: int, handles: Any, timeout: Optional[timedelta] = None) -> Any:
    return group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={}))


def expect_sum(group: Any, size: int) -> None:
    assert group.size() == size
    tensor = torch.full((3,), group.rank() + 1.0)
    group.allreduce([tensor]).wait()
    assert torch.equal(tensor, torch.full((3,), size * (size + 1) / 2)), tensor


def check_a_group_begins_without_ranks(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    assert group.supports_reconfigure
    torch_ranks.raises(ValueError, lambda: group.allreduce([torch.ones(1)]).wait(), "call reconfigure() first")
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    assert group.rank() == rank
    expect_sum(group, size)
    group.shutdown()
    torch_ranks.raises(ValueError, lambda: group.allreduce([torch.ones(1)]).wait(), "destroyed")


def check_ranks_leave_and_return(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    handles = handles_of_all(group, size)
    for absent in (size - 1, 0):
        if rank != absent:
            reconfigure(group, 10 + absent, [handle for r, handle in enumerate(handles) if r != absent]).wait()
            assert group.rank() == rank - (rank > absent)
            expect_sum(group, size - 1)
        handles = handles_of_all(group, size)
        reconfigure(group, 20 + absent, handles).wait()
        expect_sum(group, size)
        handles = handles_of_all(group, size)
    reconfigure(group, 30 + rank, [group.get_reconfigure_handle()]).wait()
    expect_sum(group, 1)


def check_a_list_gives_the_ranks_and_a_set_any(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    reconfigure(group, 1, handles[::-1]).wait()
    assert group.rank() == size - 1 - rank
    handles = handles_of_all(group, size)
    reconfigure(group, 2, set(handles)).wait()
    assert group.rank() == sorted(handles).index(handles[rank])
    expect_sum(group, size)


def check_a_running_group_of_torch(rank: int, size: int) -> None:
    """A group that init_process_group() or new_group() has connected can be reconfigured, too."""
    group = dist.new_group()
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full((2,), float(size)))
    dist.destroy_process_group(group)


def check_wrong_arguments(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    others = [handle for r, handle in enumerate(handles) if r != rank]
    torch_ranks.raises(ValueError, lambda: reconfigure(group, 1, others), "not among the handles")
    torch_ranks.raises(ValueError, lambda: reconfigure(group, 1, handles + handles[:1]), "twice")
    reconfigure(group, 1, handles).wait()
    handles = handles_of_all(group, size)
    torch_ranks.raises(RuntimeError, lambda: reconfigure(group, 1, handles), "already used")
    expect_sum(group, size)
    work = reconfigure(group, 2 + (rank == 1), handles)
    torch_ranks.raises(RuntimeError, work.wait, "different numbers")
    torch_ranks.raises(ValueError, lambda: group.allreduce([torch.ones(1)]).wait(), "has failed")
    reconfigure(group, 4, handles_of_all(group, size)).wait()
    expect_sum(group, size)


def check_calls_in_progress_end(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    message = group.recv([torch.ones(1)], (rank + 1) % size, 0)
    reconfigure(group, 2, handles_of_all(group, size)).wait()
    torch_ranks.raises(RuntimeError, message.wait, "abort")
    expect_sum(group, size)


def check_different_handles(rank: int, size: int) -> None:
    """Each rank leaves out another one, and so many ranks meet as each of them expects."""
    if size < 4:
        return
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    if rank != 2:
        work = reconfigure(group, 1, [*handles[:2], handles[3 if rank == 3 else 2]])
        torch_ranks.raises(RuntimeError, work.wait, "different handles")
    dist.barrier()
    reconfigure(group, 2, handles_of_all(group, size)).wait()
    expect_sum(group, size)


def check_one_reconfiguration_at_a_time(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    if rank == 0:
        work = reconfigure(group, 1, handles)
        torch_ranks.raises(ValueError, lambda: reconfigure(group, 2, handles), "handle")
        dist.barrier()
    else:
        dist.barrier()
        work = reconfigure(group, 1, handles)
        torch_ranks.raises(ValueError, lambda: reconfigure(group, 2, handles), "being reconfigured")
    work.wait()
    expect_sum(group, size)


def check_the_end_during_a_reconfiguration(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    if rank == 0:
        work = reconfigure(group, 1, handles)
        group.shutdown()
        dist.barrier()
        torch_ranks.raises(RuntimeError, work.wait, "while it was being")
        torch_ranks.raises(ValueError, lambda: group.allreduce([torch.ones(1)]).wait())
        torch_ranks.raises(ValueError, group.get_reconfigure_handle, "destroyed")
    else:
        dist.barrier()
        reconfigure(group, 1, handles).wait()
        torch_ranks.raises(RuntimeError, lambda: group.allreduce([torch.ones(1)]).wait())


def check_groups_leave_few_servers(rank: int, size: int) -> None:
    """A handle that no reconfiguration has used serves the next group."""
    before = 0
    for turn in range(6):
        group = unconnected(rank, size)
        reconfigure(group, 1, handles_of_all(group, size)).wait()
        expect_sum(group, size)
        group.shutdown()
        if turn == 1:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def check_a_rank_that_does_not_come(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    handles = handles_of_all(group, size)
    if rank < size - 1:
        work = reconfigure(group, 1, handles, timedelta(seconds=1))
        torch_ranks.raises(RuntimeError, work.wait, f"rank(s) {size - 1} of {size} did not join")
    dist.barrier()
    reconfigure(group, 2, handles_of_all(group, size)).wait()
    expect_sum(group, size)


def check_blocking_calls_of_other_threads_end(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    said: List[Any] = []

    def call() -> None:
        try:
            group.allreduce([torch.ones(1)]).wait()
        except RuntimeError as error:
            said.append(error)

    thread = threading.Thread(target=call, daemon=True)
    if rank == 0:
        thread.start()
    reconfigure(group, 2, handles_of_all(group, size)).wait()
    expect_sum(group, size)
    if rank == 0:
        thread.join(PATIENCE_S)
        assert len(said) == 1, said


def check_abort_and_go_on(rank: int, size: int) -> None:
    group = unconnected(rank, size)
    reconfigure(group, 1, handles_of_all(group, size)).wait()
    group.abort()
    torch_ranks.raises(RuntimeError, lambda: group.allreduce([torch.ones(1)]).wait())
    reconfigure(group, 2, handles_of_all(group, size)).wait()
    expect_sum(group, size)


if hasattr(dist, "_reconfigure"):

    def check_with_the_functions_of_torch(rank: int, size: int) -> None:
        group = dist.new_group()
        assert dist._supports_reconfigure(group)
        handles: List[Any] = [None] * size
        dist.all_gather_object(handles, dist._get_reconfigure_handle(group))
        dist._reconfigure(100, handles, group, timeout=LIMIT).wait()
        expect_sum(group, size)
        dist.destroy_process_group(group)


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 4])
def test_reconfigure(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name)


# Each rank adds up numbers. Rank 2 is killed. The others go on without it, and a new process takes its place.
SURVIVES = """
import os, signal, sys, time
from datetime import timedelta
from types import SimpleNamespace
import torch
import torch.distributed as dist
from tutti.torch import ProcessGroupTutti
rank, size, limit = int(os.environ["RANK"]), 4, timedelta(seconds=float(os.environ["TEST_LIMIT_S"]))
store = dist.FileStore(os.environ["TEST_FOLDER"] + "/store", -1)
store.set_timeout(limit)
group = ProcessGroupTutti(dist.HashStore(), rank, size, limit, enable_reconfigure=True)
def connect(epoch, ranks):
    store.set(f"{epoch}/{rank}", group.get_reconfigure_handle())
    handles = [store.get(f"{epoch}/{r}").decode() for r in ranks]
    group.reconfigure(SimpleNamespace(uuid=epoch, handles=handles, timeout=limit, hints={})).wait()
def step():
    tensor = torch.full((3,), 10.0 ** rank)
    group.allreduce([tensor]).wait()
    return tensor[0].item()
if os.environ["TEST_PART"] == "first":
    connect(1, [0, 1, 2, 3])
    assert step() == 1111
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        step()
        raise AssertionError("the sum is complete without rank 2")
    except RuntimeError as error:
        print(type(error).__name__, getattr(error, "rank", None))
    connect(2, [0, 1, 3])
    assert step() == 1011
connect(3, [0, 1, 2, 3])
assert step() == 1111
"""


def test_a_killed_rank_is_replaced() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "survives.py"
        script.write_text(SURVIVES)

        def start(rank: int, part: str) -> Any:
            variables = {"RANK": str(rank), "TEST_PART": part, "TEST_FOLDER": folder, "TEST_LIMIT_S": str(PATIENCE_S)}
            environment = dict(os.environ, OMP_NUM_THREADS="1", **variables)
            with open(f"{folder}/log.{rank}.{part}", "w") as log:
                return subprocess.Popen([sys.executable, script], env=environment, stdout=log, stderr=log)

        ranks = [start(rank, "first") for rank in range(4)]
        ranks.append(start(2, "second"))
        codes = torch_ranks.wait_all(ranks, torch_ranks.START_S)
        logs = {path.name: path.read_text() for path in Path(folder).glob("log.*")}
        assert codes == [0, 0, -signal.SIGKILL, 0, 0], f"{codes}: {logs}"
        for rank in (0, 1, 3):
            assert "PeerLostError 2" in logs[f"log.{rank}.first"], logs
