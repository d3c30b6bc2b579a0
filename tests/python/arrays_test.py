"""Tests of which objects are accepted as arrays. Others are rejected before anything is sent."""

import array
import ctypes
import mmap

import numpy
import pytest
from conftest import on_ranks

import tutti


@pytest.fixture
def one():
    return tutti.Communicator.create_all(1)[0]


READ_ONLY = numpy.ones(4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "x, message",
    [
        (READ_ONLY, "the output is read-only"),
        (b"bytes", "the output is read-only"),
        (memoryview(b"bytes"), "the output is read-only"),
        (numpy.ones(8)[::2], "the input is not contiguous in C order: numpy.ascontiguousarray"),
        (numpy.ones((3, 4), order="F"), "the input is not contiguous in C order: x.T is"),
        (numpy.ones(4, ">f8"), "not in this machine's order: x.astype"),
        (numpy.ones(4, "i4,f4"), "none of Tutti's types"),
        (numpy.ones(4, "f16"), "none of Tutti's types"),
        (numpy.zeros(4, "datetime64[s]"), "none of Tutti's types"),
        (numpy.array(["a"]), "none of Tutti's types"),
        (numpy.array([None]), "contains Python objects"),
        (numpy.float64(3), "is a number, which has no memory to write to: make an array"),
        (3.5, "is a number, which has no memory to write to"),
        ([1.0, 2.0], "type list, which has no memory that can be used"),
        (None, "all_reduce needs an input on rank 0"),
        (numpy.ma.array([1.0, 2.0], mask=[0, 1]), "the input is a masked array"),
        (numpy.array([True]), "bool has no sum: 'max' is true where any is"),
    ],
)
def test_refused_in_place(one, x, message):
    with pytest.raises(tutti.InvalidArgumentError, match=message) as caught:
        one.all_reduce(x)
    assert isinstance(caught.value, ValueError) and caught.value.code == "invalid argument"
    assert one.all_reduce(numpy.ones(1)).tolist() == [1.0]  # the communicator still works


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda c: c.all_reduce(numpy.ones(4), numpy.ones(5)),
            "the input has 4 elements, so the output must have 4, and has 5",
        ),
        (
            lambda c: c.all_reduce(numpy.ones(4), numpy.ones(4, "f4")),
            "the input has float64 elements and the output float32",
        ),
        (lambda c: c.all_reduce(numpy.ones(4), READ_ONLY), "the output is read-only"),
        (lambda c: c.all_reduce(numpy.ones(4), op="add"), "no operation 'add': use one of sum"),
        (lambda c: c.all_reduce(numpy.ones(4), op="bit_or"), "bit_or is for integers and bool, not for float64"),
        (lambda c: c.all_reduce(numpy.ones(4, "c8"), op="prod"), "complex64 has no prod"),
        (lambda c: c.all_reduce(numpy.ones(4, "i2"), op="avg"), "int16 has no avg"),
        (lambda c: c.all_reduce(numpy.ones(4), dtype="bfloat16"), "elements of 8 bytes, dtype bfloat16 has 2"),
        (lambda c: c.all_reduce(numpy.ones(4), dtype="floaty"), "no dtype 'floaty'"),
        (lambda c: c.all_reduce(numpy.ones(4), timeout=0), "timeout is 0: give seconds"),
        (lambda c: c.all_reduce(numpy.ones(4), timeout=float("nan")), "timeout is nan"),
        (lambda c: c.all_reduce(numpy.ones(4), scale=2), "scale is what op='premulsum'"),
        (lambda c: c.all_reduce(numpy.ones(4), op="premulsum"), "scale is what op='premulsum'"),
        (lambda c: c.all_reduce(numpy.ones(4, int), op="premulsum", scale=0.5), "scale is 0.5.*whole numbers"),
        (lambda c: c.all_reduce(numpy.ones(4), stream="s"), "stream is of type str"),
        (lambda c: c.broadcast(numpy.ones(4), 2), "root 2 is outside 0..1"),
        (lambda c: c.broadcast(numpy.ones(4), -1), "root -1 is outside 0..1"),
        (lambda c: c.broadcast(numpy.ones(4), 2**40), "root 1099511627776 is outside 0..1"),
        (lambda c: c.broadcast(numpy.ones(4), 0.5), "root 0.5 is no rank: give a whole number"),
        (lambda c: c.broadcast(numpy.ones(4), "0"), "root '0' is no rank"),
        (lambda c: c.all_reduce(numpy.ones(4), timeout="3"), "timeout is '3': give seconds"),
        (lambda c: c.all_gather_v(numpy.ones(2), numpy.ones(4), [2.7, 2.7]), "2.7 is no number of elements"),
        (lambda c: c.broadcast(READ_ONLY, 1 - c.rank), "the output is read-only"),
        (lambda c: c.all_gather(numpy.ones(4), numpy.ones(7)), "so the output must have 8, and has 7"),
        (lambda c: c.all_gather(bytearray(4)), "the output is missing: pass one"),
        (lambda c: c.reduce_scatter(numpy.ones(3)), "cannot be cut into 2 equal parts"),
        (lambda c: c.reduce_scatter(numpy.ones(3), numpy.ones(1)), "3 elements, which are not 2 equal parts"),
        (lambda c: c.all_to_all(numpy.ones(3)), "3 elements, which are not 2 equal parts"),
        (lambda c: c.all_gather_v(numpy.ones(1), numpy.ones(3), [1]), "counts must be 2 numbers"),
        (lambda c: c.all_gather_v(numpy.ones(1), numpy.ones(3), [1, -1]), "none below 0"),
        (lambda c: c.all_gather_v(numpy.ones(2), numpy.ones(3), [2, 2]), "its counts require 4 elements in the output, which has 3"),
        (lambda c: c.all_gather_v(numpy.ones(3), numpy.ones(9), [2, 2]), "counts say 2 elements for rank"),
        (lambda c: c.all_gather_v(numpy.ones(2), numpy.ones(4), [2, 2], [0, 3]), "its counts require 5 elements in the output, which has 4"),
        (lambda c: c.send(numpy.ones(2), c.rank), "itself"),
        (lambda c: c.send(numpy.ones(2), 7), "7"),
        (lambda c: c.receive(READ_ONLY, 1 - c.rank), "the array to receive is read-only"),
        (lambda c: c.split(-3), "colour is -3"),
        (lambda c: c.allocate(0), "no elements"),
        (lambda c: c.allocate(3, object), "Python objects"),
        (lambda c: c.auto_algorithm("all_sum", 3, "float32"), "no collective 'all_sum'"),
    ],
)
def test_refused_before_anything_is_sent(call, message):
    def rank(comm):
        with pytest.raises(tutti.InvalidArgumentError, match=message):
            call(comm)
        return comm.all_reduce(numpy.ones(1)).tolist()

    assert on_ranks(2, rank) == [[2.0]] * 2


def test_an_unknown_option_is_named(one):
    with pytest.raises(TypeError, match="there is no option 'algoritm': take dtype, algorithm"):
        one.all_reduce(numpy.ones(1), algoritm="ring")


def test_the_buffer_protocol_is_enough():
    def rank(comm):
        results = []
        with mmap.mmap(-1, 4096) as pages:
            for x in (
                bytearray(b"\1\2\3"),
                array.array("d", [1, 2, 3]),
                (ctypes.c_float * 3)(1, 2, 3),
                memoryview(bytearray(b"\1\2\3")),
                numpy.array(5.0),
            ):
                comm.all_reduce(x)
                results.append(numpy.asarray(memoryview(x)).ravel().tolist())
            view = memoryview(pages)
            comm.broadcast(view)
            view.release()
        return results

    assert on_ranks(2, rank) == [[[2, 4, 6], [2.0, 4.0, 6.0], [2.0, 4.0, 6.0], [2, 4, 6], [10.0]]] * 2


def test_read_only_input_is_enough_where_an_output_is_given(one):
    out = numpy.zeros(4)
    assert one.all_reduce(READ_ONLY, out) is out and out.tolist() == [1.0] * 4
    assert one.all_gather(b"abc", bytearray(3)) == b"abc"
    assert one.broadcast(READ_ONLY) is READ_ONLY  # the root only reads its buffer


class Dlpack:
    """An array of another library, with only the protocol that Tutti uses."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    def rank(comm):
        x = numpy.arange(6, dtype="float32").reshape(2, 3)
        comm.all_reduce(Dlpack(x))
        with pytest.raises(tutti.InvalidArgumentError, match="is not contiguous in C order"):
            comm.all_reduce(Dlpack(x[:, ::2]))
        return x.tolist()

    assert on_ranks(2, rank) == [[[0, 2, 4], [6, 8, 10]]] * 2


def test_torch_tensors():
    torch = pytest.importorskip("torch")

    def rank(comm):
        tensors = [torch.ones(3, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.float16, torch.int64)]
        for tensor in tensors:
            assert comm.all_reduce(tensor) is tensor
        comm.broadcast(torch.ones(2, dtype=torch.bool))
        with pytest.raises(tutti.InvalidArgumentError, match="is not contiguous in C order"):
            comm.all_reduce(torch.ones(4, 4).T)
        with pytest.raises(tutti.InvalidArgumentError, match="requires grad.*detach"):
            comm.all_reduce(torch.ones(3, requires_grad=True))
        return [tensor.tolist() for tensor in tensors]

    assert on_ranks(2, rank) == [[[2, 2, 2]] * 4] * 2


class OnGpu:
    """An object with the interface of CuPy's and Numba's arrays, but without memory on a GPU."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f4",
            "data": (0x7F0000000000, False),
            "version": 3,
            **changes,
        }


def test_gpu_arrays_are_told_apart(one):
    host = numpy.ones(4, "f4")
    with pytest.raises(tutti.InvalidArgumentError, match="the input is in GPU 0 and the output in host memory"):
        one.all_reduce(OnGpu(), host)
    with pytest.raises(tutti.InvalidArgumentError, match="is not contiguous in C order"):
        one.all_reduce(OnGpu(strides=(8,)))
    with pytest.raises(tutti.InvalidArgumentError, match="read-only"):
        one.all_reduce(OnGpu(data=(0x7F0000000000, True)))
    with pytest.raises(tutti.Error):  # there is no GPU, or the GPU does not have this memory
        one.all_reduce(OnGpu())


def test_allocated_memory_is_kept_by_its_arrays():
    def rank(comm):
        x = comm.allocate((3, 5), "float64")
        assert x.shape == (3, 5) and not x.any()
        x += comm.rank + 1
        view = x[1:]
        del x
        comm.all_reduce(view)
        assert (view == 3).all()
        return view

    views = on_ranks(2, rank)  # their communicators have been destroyed by now
    assert all((view == 3).all() for view in views)


def test_memory_is_released_when_nobody_looks_at_it(one):
    memory = one.core.allocate(100)
    view = memoryview(memory)
    assert (view.nbytes, memory.size, view.readonly) == (100, 100, False)
    with pytest.raises(BufferError, match="alive"):
        memory.release()
    view.release()
    memory.release()
    memory.release()
    assert memory.size == 0
    with pytest.raises(BufferError, match="released"):
        memoryview(memory)
    with pytest.raises(tutti.InvalidArgumentError, match="released"):
        memory.address


def test_own_memory_is_registered(one):
    pages = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    x = numpy.frombuffer(pages, "uint8")
    x[:3] = [1, 2, 3]
    registered = one.core.register_memory(x.ctypes.data, x.nbytes)
    assert one.all_reduce(x)[:3].tolist() == [1, 2, 3]
    registered.release()
    with pytest.raises(tutti.InvalidArgumentError):
        one.core.register_memory(x.ctypes.data + 1, 4096)
