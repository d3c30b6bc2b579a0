"""Tests of background work, of groups, and of communicators that are made from other communicators."""

import gc
import pickle
import threading
import time
import weakref

import numpy
import pytest
from conftest import on_ranks
from patience import PATIENCE_S

import tutti
from tutti import _core, errors


def test_work_gives_the_result():
    def rank(comm):
        works = [comm.all_reduce(numpy.full(1000, float(i)), blocking=False) for i in range(20)]
        works.append(comm.all_gather(numpy.full(2, comm.rank), blocking=False))
        works.append(comm.barrier(blocking=False))
        results = [work.wait() for work in works]
        assert all(work.test() for work in works) and works[3].wait() is results[3]
        assert [x[0] for x in results[:20]] == [2.0 * i for i in range(20)]
        return results[20].tolist()

    assert on_ranks(2, rank) == [[[0, 0], [1, 1]]] * 2


def test_work_that_is_dropped_keeps_its_arrays():
    comms = tutti.Communicator.create_all(2)
    x = numpy.ones(1 << 16)
    alive = numpy.ones(1 << 16)
    gone = weakref.ref(x)
    comms[0].all_reduce(x, blocking=False)
    del x
    gc.collect()
    assert gone() is not None  # its Work object was deleted, but the operation continues
    comms[1].all_reduce(alive)
    assert (alive == 2).all()
    deadline = time.monotonic() + PATIENCE_S
    while gone() is not None and time.monotonic() < deadline:
        work = comms[0].send(numpy.ones(1), 1, blocking=False)  # creating a Work removes those that have ended
        comms[1].receive(numpy.ones(1), 0)
        work.wait()
        del work
        gc.collect()
    assert gone() is None


def test_other_threads_run_while_a_call_blocks():
    comms = tutti.Communicator.create_all(2)
    steps = []
    thread = threading.Thread(target=lambda: comms[0].all_reduce(numpy.ones(1)))
    thread.start()
    for _ in range(20):
        steps.append(time.monotonic())
        time.sleep(0.005)
    assert thread.is_alive()
    comms[1].all_reduce(numpy.ones(1))
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and len(steps) == 20


def test_abort_ends_a_call_of_another_thread():
    comms = tutti.Communicator.create_all(2)
    caught = []

    def wait():
        try:
            comms[0].barrier()
        except tutti.Error as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    comms[0].abort()
    thread.join(PATIENCE_S)
    assert isinstance(caught[0], tutti.AbortedError) and caught[0].scope == "communicator"


def test_deadline_names_who_is_missing():
    comms = tutti.Communicator.create_all(3)
    with pytest.raises(TimeoutError, match="rank.* 1, 2") as caught:
        comms[0].all_reduce(numpy.ones(1), timeout=0.2)
    assert isinstance(caught.value, tutti.DeadlineError) and caught.value.code == "timeout"


def test_group_as_a_block():
    def rank(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        x, y, z = numpy.full(9, comm.rank), numpy.empty(9, int), numpy.ones(3)
        with tutti.Group() as group:
            assert comm.receive(y, left, group=group) is y
            comm.send(x, right, group=group)
            comm.all_reduce(z, group=group)
        assert (y == left).all() and z[0] == comm.size
        comm.send(x, comm.rank, group=group)  # a message to the rank itself, in the same group object
        comm.receive(y, comm.rank, group=group)
        results = group.run()
        assert results[0] is x and (y == comm.rank).all()

    on_ranks(3, rank)


def test_group_in_the_background_over_two_communicators():
    def rank(comm):
        other = comm.duplicate()
        group = tutti.Group()
        calls = [(comm, numpy.ones(5)), (other, numpy.ones(5))]
        for on, x in calls if comm.rank == 0 else reversed(calls):
            on.all_reduce(x, group=group)
        work = group.start()
        assert len(work.wait()) == 2
        return [x[0] for _, x in calls]

    assert on_ranks(2, rank) == [[2.0, 2.0]] * 2


def test_group_that_fails_in_its_block_does_nothing():
    def rank(comm):
        with pytest.raises(tutti.InvalidArgumentError, match="read-only"):
            with tutti.Group() as group:
                comm.all_reduce(numpy.ones(3), group=group)
                comm.all_reduce(b"123", group=group)
        return comm.all_reduce(numpy.ones(1)).tolist()  # must work, because the failed group contains no calls

    assert on_ranks(2, rank) == [[2.0]] * 2


def test_split_duplicate_agree_shrink():
    def rank(comm):
        half = comm.split(comm.rank % 2, key=-comm.rank)
        assert half.size == 2 and half.all_reduce(numpy.array([comm.rank]))[0] == (2 if comm.rank % 2 == 0 else 4)
        assert (comm.split(None if comm.rank == 3 else 0) is None) == (comm.rank == 3)
        agreement = comm.agree(value=10 + comm.rank)
        assert (agreement.survivors, agreement.value) == ([0, 1, 2, 3], 10)
        if comm.rank == 0:
            return "excluded"
        smaller = comm.shrink([0])
        return smaller.rank, smaller.all_reduce(numpy.ones(1))[0]

    assert on_ranks(4, rank) == ["excluded", (0, 3.0), (1, 3.0), (2, 3.0)]


def test_grow():
    unique_id = tutti.UniqueId.create()
    sums = []

    def newcomer():
        comm = tutti.Communicator(rank=2, size=3, unique_id=unique_id)
        sums.append(comm.all_reduce(numpy.ones(1))[0])

    thread = threading.Thread(target=newcomer)
    thread.start()

    def rank(comm):
        larger = comm.grow(3, unique_id if comm.rank == 1 else None)
        return larger.all_reduce(numpy.ones(1))[0]

    assert on_ranks(2, rank) == [3.0, 3.0]
    thread.join(PATIENCE_S)
    assert sums == [3.0]


def test_with_finalizes_or_aborts():
    comms = tutti.Communicator.create_all(1) + tutti.Communicator.create_all(1)
    with comms[0] as comm:
        comm.all_reduce(numpy.ones(1))
    with pytest.raises(tutti.Error, match="final"):
        comms[0].all_reduce(numpy.ones(1))
    with pytest.raises(ZeroDivisionError):
        with comms[1]:
            raise ZeroDivisionError
    with pytest.raises(tutti.AbortedError):
        comms[1].barrier()


def test_every_error_is_one_class_that_pickles():
    assert len(errors.CLASSES) == len(_core.error_codes) == len(set(errors.CLASSES.values()))
    for name, kind in errors.CLASSES.items():
        error = kind("what happened", code=name, scope="connection", rank=3)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and isinstance(again, RuntimeError)
        assert str(again) == f"{name}: what happened"
        assert (again.code, again.scope, again.rank, again.message) == (name, "connection", 3, "what happened")


def test_unique_ids():
    unique_id = tutti.UniqueId.create(timeout=1)
    assert pickle.loads(pickle.dumps(unique_id)) == unique_id
    assert len(unique_id.bytes) == 128 and len(unique_id.to_text()) == 256
    for wrong in ("", "zz", unique_id.to_text()[:-1]):
        with pytest.raises(tutti.InvalidArgumentError):
            tutti.UniqueId.from_text(wrong)
    with pytest.raises(tutti.InvalidArgumentError, match="128 bytes"):
        tutti.UniqueId(b"short")
    with pytest.raises(tutti.ConfigError):
        tutti.UniqueId.create(interface="no-such-interface")


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"size": 0, "rank": 0}, tutti.Error),
        ({"size": 2, "rank": 5}, tutti.Error),
        ({"size": 1, "rank": 0, "transport": "pigeon"}, tutti.InvalidArgumentError),
        ({"size": 2, "rank": 0, "setup_timeout": 0.2}, tutti.DeadlineError),
        ({"size": 2, "rank": 0, "setup_timeout": -1}, tutti.InvalidArgumentError),
    ],
)
def test_set_up_that_cannot_be(options, kind):
    with pytest.raises(kind):
        tutti.Communicator(**options)


def test_core_refuses_numbers_that_are_none():
    core = tutti.Communicator.create_all(1)[0].core
    for arguments, what in (
        ((99, 0, 0, 0, 7), "collective"),
        ((0, 0, 0, 0, 99), "data type"),
        ((0, 0, 0, 0, 7, 77), "operation"),
        ((0, 0, 0, 0, 7, 0, 0, 99), "algorithm"),
        ((-1, 0, 0, 0, 7), "collective"),
    ):
        with pytest.raises(tutti.InvalidArgumentError, match=f"no {what} of number"):
            core.run(*arguments)
    with pytest.raises(tutti.InvalidArgumentError, match="no reduction of number 99"):
        core.run(0, 0, 0, 0, 7, reduction=99)
    with pytest.raises(tutti.InvalidArgumentError, match="int16_sum is for elements of 2 bytes"):
        core.run(0, 0, 0, 0, 7, reduction=_core.reductions["int16_sum"])
    with pytest.raises(tutti.InvalidArgumentError, match="without counts"):
        core.run(3, 0, 0, 0, 7, input_displacements=[0])
