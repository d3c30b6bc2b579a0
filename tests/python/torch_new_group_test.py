"""Tests of new_group() with lists of ranks that differ between the ranks."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402

TIMEOUT_S = 40.0


def set_up(rank: int, size: int, folder: str) -> None:
    import tutti.torch  # noqa: F401

    store = torch_ranks.store(folder, size)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S))


def check_all_ranks_get_both_lists(rank: int, size: int) -> None:
    """Ranks 1 and 3 come later. Nobody waits for the timeout."""
    mine, other = ([0, 3], "1-2") if rank in (0, 3) else ([1, 2], "0,3")
    time.sleep(1.0 if rank in (1, 3) else 0.0)
    begin = time.monotonic()
    torch_ranks.raises(RuntimeError, lambda: dist.new_group(mine), "disagree on its ranks", other)
    assert time.monotonic() - begin < TIMEOUT_S / 2


def check_a_rank_that_does_not_come(rank: int, size: int) -> None:
    mine, other = ([0, 2], "1-2") if rank == 0 else ([1, 2], "0,2")
    if rank < 2:
        begin = time.monotonic()
        torch_ranks.raises(RuntimeError, lambda: dist.new_group(mine), "disagree on its ranks", other)
        assert time.monotonic() - begin < TIMEOUT_S / 2


def check_groups_of_one_rank_leave_nothing(rank: int, size: int) -> None:
    before = 0
    for turn in range(5):
        group = [dist.new_group([r]) for r in range(size)][rank] if turn % 2 else dist.new_group([rank])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
        if turn == 0:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("name", torch_ranks.checks_of(sys.modules[__name__]))
def test_new_group(name: str) -> None:
    torch_ranks.expect_ok(torch_ranks.results(4, __file__, [name])[name])


def test_lists_of_ranks_have_a_short_text() -> None:
    import tutti.torch.rendezvous as rendezvous

    for ranks, text in (([0], "0"), ([0, 1, 2, 3, 6], "0-3,6"), ([3, 2, 1], "3,2,1"), ([1, 3, 4], "1,3-4")):
        assert rendezvous.describe_ranks(ranks) == text
        assert rendezvous.listed_ranks(text) == ranks


class EndedStore:
    """A store whose process ends as soon as this rank has reported that it knows both lists."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return b"0,2"  # the list of the first rank

    def set(self, key: str, value: str) -> None:
        pass

    def check(self, keys: List[str]) -> bool:
        raise RuntimeError("connection reset by peer")


def test_the_lists_are_named_even_if_the_store_ends() -> None:
    from tutti.torch.rendezvous import GroupStore

    def join() -> None:
        GroupStore(EndedStore(), 0, 2, timedelta(seconds=TIMEOUT_S), [0, 1], "world")

    torch_ranks.raises(RuntimeError, join, "disagree on its ranks", "0-1", "0,2")
