"""Tests of every collective with NumPy arrays. The expected values are calculated with NumPy."""

import itertools

import numpy
import pytest
from conftest import on_ranks

import tutti
from tutti import _core

SIZES = (1, 2, 3, 4)
NUMBERS = [name for name in _core.data_types if "bfloat" not in name and "float8" not in name]


def value(rank, count=24, dtype="float64"):
    """Values that differ between ranks and between indices. They are small, so that every type adds them exactly."""
    return ((numpy.arange(count) * 7 + rank * 5) % 11).astype(dtype)


def stack(size, count=24, dtype="float64"):
    return numpy.stack([value(rank, count, dtype) for rank in range(size)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_all_reduce_of_every_number_type(size, dtype):
    def rank(comm):
        x = value(comm.rank, dtype=dtype)
        out = numpy.empty_like(x)
        assert comm.all_reduce(x, out) is out
        assert comm.all_reduce(x) is x
        return numpy.array_equal(out, x) and x.tolist() == stack(size).sum(0).tolist()

    assert all(on_ranks(size, rank))


OPERATIONS = {
    "sum": lambda rows: rows.sum(0),
    "prod": lambda rows: rows.prod(0),
    "max": lambda rows: rows.max(0),
    "min": lambda rows: rows.min(0),
    "avg": lambda rows: rows.mean(0),
    "bit_and": numpy.bitwise_and.reduce,
    "bit_or": numpy.bitwise_or.reduce,
    "bit_xor": numpy.bitwise_xor.reduce,
}


@pytest.mark.parametrize(
    "op, dtype",
    [
        (op, dtype)
        for op in OPERATIONS
        for dtype in ("float64", "int64", "int16", "uint16", "uint8")
        if (not op.startswith("bit") or dtype != "float64") and (op != "avg" or dtype == "float64")
    ],
)
def test_every_operation(op, dtype):
    def rank(comm):
        return comm.all_reduce(value(comm.rank, dtype=dtype), op=op)

    for result in on_ranks(3, rank):
        numpy.testing.assert_array_equal(result, OPERATIONS[op](stack(3, dtype=dtype)).astype(dtype))


def test_16_bit_integers_wrap_and_compare_with_their_sign():
    def rank(comm):
        x = numpy.array([30000, -30000, -1], numpy.int16)
        return [comm.all_reduce(x.copy(), op=op).tolist() for op in ("sum", "prod", "min", "max")]

    expected = [
        [-5536, 5536, -2],
        [numpy.array(30000 * 30000 % 65536, numpy.uint16).astype(numpy.int16).item()] * 2 + [1],
        [30000, -30000, -1],
        [30000, -30000, -1],
    ]
    assert on_ranks(2, rank) == [expected] * 2


def test_premulsum_takes_each_ranks_own_scale():
    def rank(comm):
        reals = comm.all_reduce(numpy.ones(2), op="premulsum", scale=comm.rank + 0.5)
        return reals.tolist(), comm.all_reduce(numpy.ones(2, int), op="premulsum", scale=comm.rank + 2).tolist()

    assert on_ranks(3, rank) == [([4.5, 4.5], [9, 9])] * 3


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_summed_and_averaged(dtype):
    def rank(comm):
        x = (value(comm.rank) + 1j * value(comm.rank + 1)).astype(dtype)
        return comm.all_reduce(x, numpy.empty_like(x)), comm.all_reduce(x.copy(), op="avg")

    for total, mean in on_ranks(2, rank):
        both = [(value(r) + 1j * value(r + 1)).astype(dtype) for r in range(2)]
        numpy.testing.assert_array_equal(total, both[0] + both[1])
        numpy.testing.assert_array_equal(mean, (both[0] + both[1]) / 2)


def test_bool_is_any_and_all():
    def rank(comm):
        x = numpy.array([False, True, comm.rank == 1])
        return [comm.all_reduce(x.copy(), op=op).tolist() for op in ("max", "min", "bit_xor")]

    any_, all_ = [False, True, True], [False, True, False]
    assert on_ranks(2, rank) == [[any_, all_, [False, False, True]]] * 2


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "float8_e5m2"])
def test_small_floats_by_ml_dtypes_and_by_name(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = numpy.dtype(getattr(ml_dtypes, name + ("fn" if name.endswith("e4m3") else "")))

    def rank(comm):
        x = numpy.array([1, 2, -4], dtype) * dtype.type(comm.rank + 1)
        raw = x.view("uint16" if dtype.itemsize == 2 else "uint8").copy()
        comm.all_reduce(raw, dtype=name)
        return comm.all_reduce(x).astype(float).tolist(), raw.view(dtype).astype(float).tolist()

    assert on_ranks(2, rank) == [([3.0, 6.0, -12.0],) * 2] * 2


@pytest.mark.parametrize("size, root", [(size, root) for size in SIZES for root in {0, size - 1}])
def test_broadcast_and_reduce(size, root):
    def rank(comm):
        x = value(comm.rank)
        assert comm.broadcast(x, root) is x
        numpy.testing.assert_array_equal(x, value(root))
        x = value(comm.rank)
        x.flags.writeable = comm.rank == root  # the other ranks only read their input
        for out in (numpy.empty_like(x), None):
            result = comm.reduce(x, out, root=root)
            assert (result is not None) == (comm.rank == root)
            if result is not None:
                numpy.testing.assert_array_equal(result, stack(size).sum(0))

    on_ranks(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_all_gather(size):
    def rank(comm):
        x = value(comm.rank).reshape(4, 6)
        new = comm.all_gather(x)
        assert new.shape == (size, 4, 6)
        numpy.testing.assert_array_equal(new, stack(size).reshape(size, 4, 6))
        out = numpy.zeros(size * 24)
        assert comm.all_gather(x, out) is out
        numpy.testing.assert_array_equal(out, stack(size).ravel())
        out[:] = 0
        out.reshape(size, 24)[comm.rank] = value(comm.rank)
        comm.all_gather(out.reshape(size, 24)[comm.rank], out)  # in place
        numpy.testing.assert_array_equal(out, stack(size).ravel())

    on_ranks(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(size):
    def rank(comm):
        x = value(comm.rank, size * 6).reshape(size * 2, 3)
        expected = stack(size, size * 6).sum(0).reshape(size, 2, 3)[comm.rank]
        numpy.testing.assert_array_equal(comm.reduce_scatter(x), expected)
        out = numpy.empty(6)
        assert comm.reduce_scatter(x, out, "sum") is out
        numpy.testing.assert_array_equal(out, expected.ravel())
        mine = x.reshape(size, 6)[comm.rank]
        comm.reduce_scatter(x, mine)  # in place
        numpy.testing.assert_array_equal(mine, expected.ravel())

    on_ranks(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(size):
    def rank(comm):
        x = value(comm.rank, size * 5)
        expected = stack(size, size * 5).reshape(size, size, 5)[:, comm.rank].ravel()
        out = numpy.empty_like(x)
        assert comm.all_to_all(x, out) is out
        numpy.testing.assert_array_equal(out, expected)
        assert comm.all_to_all(x) is x
        numpy.testing.assert_array_equal(x, expected)

    on_ranks(size, rank)


@pytest.mark.parametrize("size, root", [(size, root) for size in SIZES for root in {0, size - 1}])
def test_gather_and_scatter(size, root):
    def rank(comm):
        rows = comm.gather(value(comm.rank), root=root)
        assert (rows is not None) == (comm.rank == root)
        if rows is not None:
            numpy.testing.assert_array_equal(rows, stack(size))
        out = numpy.zeros((size, 24)) if comm.rank == root else None
        comm.gather(value(comm.rank), out, root)
        part = comm.scatter(out, None if comm.rank == root else numpy.empty(24), root)
        numpy.testing.assert_array_equal(part.ravel(), value(comm.rank))
        comm.scatter(out, numpy.empty(24) if comm.rank != root else out[root], root)  # in place

    on_ranks(size, rank)


@pytest.mark.parametrize("dtype", ["int16", "bool", "complex128", "float32"])
def test_every_type_is_moved(dtype):
    def rank(comm):
        x = value(comm.rank).astype(dtype)
        numpy.testing.assert_array_equal(comm.all_gather(x), stack(2).astype(dtype))
        numpy.testing.assert_array_equal(comm.broadcast(x, 1), value(1).astype(dtype))
        out = numpy.empty(5, dtype)
        comm.all_gather_v(value(comm.rank)[: 2 + comm.rank].astype(dtype), out, [2, 3])
        numpy.testing.assert_array_equal(out, numpy.concatenate([value(0)[:2], value(1)[:3]]).astype(dtype))

    on_ranks(2, rank)


COUNTS = [3, 0, 5, 1]


@pytest.mark.parametrize("displacements", [None, [6, 0, 0, 5]])
def test_all_gather_v_and_reduce_scatter_v(displacements):
    starts = displacements or [0, 3, 3, 8]

    def rank(comm):
        out = numpy.full(10, -1.0)
        comm.all_gather_v(value(comm.rank)[: COUNTS[comm.rank]], out, COUNTS, displacements)
        for q, (start, count) in enumerate(zip(starts, COUNTS)):
            numpy.testing.assert_array_equal(out[start : start + count], value(q)[:count])
        mine = numpy.empty(COUNTS[comm.rank])
        comm.reduce_scatter_v(value(comm.rank), mine, COUNTS, displacements, op="max")
        start = starts[comm.rank]
        numpy.testing.assert_array_equal(mine, stack(4).max(0)[start : start + COUNTS[comm.rank]])

    on_ranks(4, rank)


def test_all_to_all_v():
    def length(sender, receiver):
        return (sender + 2 * receiver) % 4

    def rank(comm):
        sends = [length(comm.rank, q) for q in range(3)]
        receives = [length(q, comm.rank) for q in range(3)]
        out = numpy.empty(sum(receives))
        comm.all_to_all_v(value(comm.rank)[: sum(sends)], sends, out, receives)
        expected = []
        for q in range(3):
            start = sum(length(q, other) for other in range(comm.rank))
            expected.append(value(q)[start : start + length(q, comm.rank)])
        numpy.testing.assert_array_equal(out, numpy.concatenate(expected))

    on_ranks(3, rank)


def test_gather_v_and_scatter_v():
    def rank(comm):
        mine = value(comm.rank)[: COUNTS[comm.rank]]
        if comm.rank == 2:
            out = numpy.empty(9)
            comm.gather_v(mine, out, COUNTS, root=2)
            numpy.testing.assert_array_equal(out, numpy.concatenate([value(q)[:c] for q, c in enumerate(COUNTS)]))
            back = comm.scatter_v(out, COUNTS, numpy.empty(5), root=2)
        else:
            assert comm.gather_v(mine, root=2) is None
            back = comm.scatter_v(None, None, numpy.empty(COUNTS[comm.rank]), root=2)
        numpy.testing.assert_array_equal(back, mine)

    on_ranks(4, rank)


def test_send_and_receive():
    def rank(comm):
        if comm.rank == 0:
            comm.send(value(0), 1)
            return comm.receive(numpy.empty(3, "complex64"), 1)
        x = comm.receive(numpy.empty(24), 0)
        comm.send(x[:3].astype("complex64") * 1j, 0)
        return x

    first, second = on_ranks(2, rank)
    numpy.testing.assert_array_equal(first, value(0)[:3].astype("complex64") * 1j)
    numpy.testing.assert_array_equal(second, value(0))


def test_receiving_from_anybody():
    def rank(comm):
        if comm.rank > 0:
            for k in range(3):
                comm.send(numpy.full(comm.rank, k), 0)
            return None
        got = []
        for _ in range(6):
            sender = comm.next_sender()
            got.append((sender, int(comm.receive(numpy.empty(sender, int), sender)[0])))
        with pytest.raises(tutti.DeadlineError, match="next_sender"):
            comm.next_sender(timeout=0.1)
        return got

    got = on_ranks(3, rank)[0]
    assert [k for q, k in got if q == 1] == [k for q, k in got if q == 2] == [0, 1, 2]


@pytest.mark.parametrize("transport, nodes", [("shm", 1), ("tcp", 1), ("", 2)])
def test_ways_between_ranks(transport, nodes):
    def rank(comm):
        x = value(comm.rank, 100_000)
        numpy.testing.assert_array_equal(comm.all_reduce(x), stack(4, 100_000).sum(0))
        comm.barrier()
        return comm.transport, comm.nodes

    assert set(on_ranks(4, rank, transport=transport, nodes=nodes)) == {(transport or "mixed", nodes)}


def test_algorithms_by_name():
    def rank(comm):
        for name in ("ring", "one_shot", "two_shot", "double_tree"):
            numpy.testing.assert_array_equal(comm.all_reduce(value(comm.rank), algorithm=name), stack(2).sum(0))
        with pytest.raises(tutti.InvalidArgumentError, match="no algorithm 'rings'.*ring, "):
            comm.all_reduce(value(0), algorithm="rings")
        predicted = comm.predicted_us("all_reduce", 1000, "float32")
        return comm.auto_algorithm("all_reduce", 1000, "float32") in _core.algorithms and predicted > 0

    assert all(on_ranks(2, rank))


def test_empty_arrays():
    def rank(comm):
        empty = numpy.empty((0, 3), "float32")
        assert comm.all_reduce(empty) is empty and comm.broadcast(empty) is empty
        assert comm.all_gather(empty).shape == (2, 0, 3) and comm.all_to_all(empty) is empty
        if comm.rank == 0:
            comm.send(empty, 1)
        else:
            comm.receive(empty, 0)

    on_ranks(2, rank)


def test_every_pair_of_kinds_in_one_order():
    """A rank that passes options uses another code path than a rank that passes none. Both must work together."""

    def rank(comm):
        for ours, theirs in itertools.product(({}, {"timeout": 50.0}), repeat=2):
            options = ours if comm.rank == 0 else theirs
            numpy.testing.assert_array_equal(comm.all_reduce(value(comm.rank), **options), stack(2).sum(0))
            numpy.testing.assert_array_equal(comm.broadcast(value(comm.rank), **options), value(0))
            comm.barrier(**options)

    on_ranks(2, rank)
