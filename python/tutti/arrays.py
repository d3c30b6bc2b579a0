"""Finds out the address, length and element type of an array that is passed to a call.

Supported are NumPy arrays, objects with the buffer protocol (bytearray, array.array, mmap, ctypes, memoryview), objects
with __cuda_array_interface__, and objects with __dlpack__ (PyTorch, CuPy, JAX). The array must be contiguous in C
order, and writable if it receives results. Calls use the memory of the array itself, without a copy.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy

from . import _core
from .errors import InvalidArgumentError

_core.set_array_type(numpy.ndarray)

# Tutti's name of a NumPy type. The key is the letter of NumPy's kind and the number of bytes of an element ("i4"), or
# NumPy's name ("bfloat16"). reduced() and moved() have special rules for the types in this table that are not data
# types of Tutti's C++ library (int16, uint16, bool and the complex types).
_TYPES = {
    kind + str(int(bits) // 8): name + bits
    for kind, name in (("i", "int"), ("u", "uint"))
    for bits in ("8", "16", "32", "64")
}
_TYPES.update({"f2": "float16", "f4": "float32", "f8": "float64", "b1": "bool", "c8": "complex64", "c16": "complex128"})
_TYPES.update({"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3", "float8_e5m2": "float8_e5m2"})

# A cache of the results of _name_of(), because NumPy takes long to return the name of a dtype.
_NAMES: "Dict[numpy.dtype[Any], str]" = {}

# Type codes and device types of dlpack.h.
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_DLPACK_NAMES = {4: "bfloat16", 10: "float8_e4m3fn", 12: "float8_e5m2"}
_DLPACK_HOST, _DLPACK_PINNED, _DLPACK_CUDA, _DLPACK_MANAGED = 1, 3, 2, 13

_BIT_OPS = ("bit_and", "bit_or", "bit_xor")
_OPS = tuple(_core.reduce_ops) + _BIT_OPS


class Array(NamedTuple):
    """One array. `type` is a name of _core.data_types, or int16, uint16, bool, complex64 or complex128."""

    address: int
    elements: int
    type: str
    itemsize: int
    read_only: bool
    device: Optional[int]  # number of the GPU; None for host memory
    stream: Optional[int]  # CUstream that the array itself names, 0: the default stream; None for host memory
    owner: Any  # the object that keeps the memory alive


class Elements(NamedTuple):
    """How a call treats the elements of an array: each is `factor` elements of the data type `dtype` (a number in
    _core.data_types). `op` and `reduction` are the arguments of _core for a call that reduces."""

    dtype: int
    factor: int
    op: int = 0
    reduction: int = 0


def to_array(x: Any, what: str, dtype: Any = None) -> Array:
    """Returns the Array of x. Raises InvalidArgumentError if x cannot be used without a copy. `what` is the name of x
    in error messages, for example "the input".

    dtype: the type of the elements if it differs from the type of x ("bfloat16" in an array of uint16). The two types
    must have the same size.
    """
    if isinstance(x, numpy.ndarray):
        array = _of_numpy(x, what, dtype is not None)
    elif isinstance(x, numpy.generic) or isinstance(x, (int, float, complex, bool)):
        raise InvalidArgumentError(
            f"{what} is a number, which has no memory to write to: make an array, numpy.array({x!r})"
        )
    elif hasattr(x, "__cuda_array_interface__"):
        array = _of_cuda(x, what, dtype is not None)
    elif hasattr(x, "__dlpack__"):
        array = _of_dlpack(x, what, dtype is not None)
    else:
        array = _of_numpy(_from_buffer(x, what), what, dtype is not None)
    if dtype is None:
        return array
    name = type_name(dtype)
    size = _core.type_sizes[_core.data_types[name]] if name in _core.data_types else numpy.dtype(name).itemsize
    if size != array.itemsize:
        raise InvalidArgumentError(f"{what} has elements of {array.itemsize} bytes, dtype {name} has {size}")
    return array._replace(type=name)


def type_name(dtype: Any) -> str:
    """Returns Tutti's name for a type, which is given as a name or as a NumPy dtype. Raises InvalidArgumentError if
    there is no such type."""
    if isinstance(dtype, str) and (dtype in _core.data_types or dtype in _TYPES):
        return dtype if dtype in _core.data_types else _TYPES[dtype]
    try:
        found = numpy.dtype(dtype)
    except TypeError:
        raise InvalidArgumentError(f"there is no dtype {dtype!r}: take one of {', '.join(_core.data_types)}") from None
    return _name_of(found, "dtype")


def writable(array: Array, what: str) -> Array:
    """Returns `array`. Raises InvalidArgumentError if it is read-only. `what` is its name in the error message."""
    if array.read_only:
        raise InvalidArgumentError(f"{what} is read-only, and the result goes there: give a writable array as output")
    return array


def same_kind(array: Array, other: Array) -> None:
    """Raises InvalidArgumentError if the input `array` and the output `other` cannot be used in one call, because they
    differ in type or device."""
    if array.type != other.type:
        raise InvalidArgumentError(
            f"the input has {array.type} elements and the output {other.type}: both must have the same dtype"
        )
    if array.device != other.device:
        places = ["host memory" if device is None else f"GPU {device}" for device in (array.device, other.device)]
        raise InvalidArgumentError(
            f"the input is in {places[0]} and the output in {places[1]}: both must be in the same memory"
        )


def moved(array: Array) -> Elements:
    """Returns the Elements of an array for a call that only moves elements. If the C++ library does not have the type,
    each element is moved as its bytes."""
    number = _core.data_types.get(array.type)
    return Elements(_core.data_types["uint8"], array.itemsize) if number is None else Elements(number, 1)


def reduced(array: Array, op: str) -> Elements:
    """Returns the Elements of an array for a call that reduces with `op`. Types that the C++ library does not have are
    reduced as others: bool as uint8, a complex number as two real ones, 16-bit integers by a reduction of _core. Raises
    InvalidArgumentError if the operation does not exist for the type."""
    kind = array.type
    if op not in _OPS:
        raise InvalidArgumentError(f"there is no operation {op!r}: use one of {', '.join(_OPS)}")
    number = _core.data_types.get(kind)
    if op in _BIT_OPS:
        if "int" in kind or kind == "bool":
            carrier = {1: "uint8", 2: "float16"}  # a type of the same size; the bit operations use only its size
            return Elements(
                _core.data_types[carrier[array.itemsize]] if number is None else number, 1, 0, _core.reductions[op]
            )
        raise InvalidArgumentError(f"{op} is for integers and bool, not for {kind}")
    if number is not None:
        return Elements(number, 1, _core.reduce_ops[op])
    if kind == "bool":
        if op in ("max", "min"):
            return Elements(_core.data_types["uint8"], 1, _core.reduce_ops[op])
        raise InvalidArgumentError(f"bool has no {op}: 'max' is true where any is, 'min' where all are")
    if kind.startswith("complex"):
        if op in ("sum", "avg"):
            return Elements(_core.data_types["float32" if kind == "complex64" else "float64"], 2, _core.reduce_ops[op])
        raise InvalidArgumentError(f"{kind} has no {op}: only 'sum' and 'avg' are possible")
    reduction = _core.reductions.get(f"{kind}_{op}")
    if reduction is None:
        raise InvalidArgumentError(
            f"{kind} has no {op}: sum, prod, min, max and the bit operations, or convert it to int32"
        )
    return Elements(_core.data_types["float16"], 1, 0, reduction)


def new_like(x: Any, shape: Tuple[int, ...], what: str) -> Any:
    """Creates a NumPy array for a result, with the dtype of x. Raises InvalidArgumentError if x is not a NumPy array;
    `what` is then the name of the missing array in the message."""
    if isinstance(x, numpy.ndarray):
        return numpy.empty(shape, x.dtype)
    raise InvalidArgumentError(f"{what} is missing: pass one (it is created only if the input is a NumPy array)")


def _name_of(dtype: "numpy.dtype[Any]", what: str, any_type: bool = False) -> str:
    known = _NAMES.get(dtype)
    if known is not None:
        return known
    name = _TYPES.get(dtype.name) or _TYPES.get(dtype.kind + str(dtype.itemsize))
    if not dtype.isnative:
        raise InvalidArgumentError(
            f"{what} is of dtype {dtype}, whose bytes are not in this machine's order: "
            f"x.astype({dtype.newbyteorder('=').str!r})"
        )
    if name is not None and dtype.names is None:
        _NAMES[dtype] = name
        return name
    if any_type and not dtype.hasobject:
        return dtype.name
    raise InvalidArgumentError(
        f"{what} is of dtype {dtype}, which is none of Tutti's types: give a view of it as one, "
        f"x.view('uint8') for its bytes"
        if not dtype.hasobject
        else f"{what} contains Python objects, whose addresses are invalid in other processes: pickle them"
    )


def _of_numpy(x: "numpy.ndarray[Any, Any]", what: str, any_type: bool) -> Array:
    name = _name_of(x.dtype, what, any_type)
    if isinstance(x, numpy.ma.MaskedArray):
        raise InvalidArgumentError(
            f"{what} is a masked array, and the mask cannot be sent to other ranks: give x.filled(...) or x.data"
        )
    if not x.flags.c_contiguous:
        hint = (
            "x.T is, because x is in Fortran order"
            if x.flags.f_contiguous
            else "numpy.ascontiguousarray(x) makes a copy"
        )
        raise InvalidArgumentError(f"{what} is not contiguous in C order: {hint}")
    return Array(x.__array_interface__["data"][0], x.size, name, x.dtype.itemsize, not x.flags.writeable, None, None, x)


def _from_buffer(x: Any, what: str) -> "numpy.ndarray[Any, Any]":
    try:
        view = memoryview(x)
    except TypeError:
        raise InvalidArgumentError(
            f"{what} is of type {type(x).__name__}, which has no memory that can be used: give a NumPy array, or an "
            "object with the buffer protocol, __dlpack__ or __cuda_array_interface__"
        ) from None
    return numpy.asarray(view)


def _of_cuda(x: Any, what: str, any_type: bool) -> Array:
    face = x.__cuda_array_interface__
    dtype = numpy.dtype(face["typestr"])
    elements = int(numpy.prod(face["shape"], dtype=numpy.int64))
    address, read_only = face["data"]
    name = _name_of(dtype, what, any_type)
    expected = dtype.itemsize
    for length, stride in zip(reversed(face["shape"]), reversed(face.get("strides") or ())):
        if length > 1 and stride != expected and elements > 0:
            raise InvalidArgumentError(f"{what} is not contiguous in C order: make a contiguous copy")
        expected *= length
    device = getattr(x, "device", None)
    device = getattr(device, "index", getattr(device, "id", device))
    # An array in GPU memory always has a stream here, unlike one in host memory: 0, the default stream, if it names
    # none.
    return Array(
        int(address),
        elements,
        name,
        dtype.itemsize,
        bool(read_only),
        device if isinstance(device, int) else 0,
        int(face.get("stream") or 0),
        x,
    )


def _of_dlpack(x: Any, what: str, any_type: bool) -> Array:
    if getattr(x, "requires_grad", False):
        raise InvalidArgumentError(
            f"{what} requires grad, and collectives are not part of autograd: give x.detach()"
        )
    found = _core.describe(x)
    if found is None:
        try:
            x.__dlpack__()
            reason = "the result of its __dlpack__() cannot be used"
        except Exception as error:  # the library of the array states in its exception why it exports no memory
            reason = str(error)
        raise InvalidArgumentError(f"{what}, of type {type(x).__name__}, cannot be used: {reason}")
    # describe() in python/src/arrays.cc explains the elements of this tuple.
    address, elements, contiguous, code, bits, read_only, device_type, device, owner = found
    itemsize = bits // 8
    name = _TYPES.get(_DLPACK_NAMES.get(code, _DLPACK_KINDS.get(code, "?") + str(itemsize)))
    if name is None or bits % 8 != 0:
        raise InvalidArgumentError(
            f"{what} has elements of a type that is none of Tutti's (DLPack code {code}, {bits} bits)"
        )
    if not contiguous:
        raise InvalidArgumentError(f"{what} is not contiguous in C order: make a contiguous copy")
    if device_type in (_DLPACK_HOST, _DLPACK_PINNED):
        return Array(address, elements, name, itemsize, read_only, None, None, (x, owner))
    if device_type in (_DLPACK_CUDA, _DLPACK_MANAGED):
        return Array(address, elements, name, itemsize, read_only, device, 0, (x, owner))
    raise InvalidArgumentError(f"{what} is in the memory of a device that is neither the host nor a CUDA GPU")
