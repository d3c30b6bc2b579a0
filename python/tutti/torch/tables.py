"""Tables that map torch's element types and reductions to Tutti's. This module does not communicate."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch.distributed import ReduceOp

from .. import _core
from ..errors import InvalidArgumentError
from .errors import unsupported

ALL_REDUCE = _core.collectives["all_reduce"]
BROADCAST = _core.collectives["broadcast"]
REDUCE = _core.collectives["reduce"]
ALL_GATHER = _core.collectives["all_gather"]
REDUCE_SCATTER = _core.collectives["reduce_scatter"]
ALL_TO_ALL = _core.collectives["all_to_all"]
GATHER = _core.collectives["gather"]
SCATTER = _core.collectives["scatter"]
BARRIER = _core.collectives["barrier"]

INT64 = _core.data_types["int64"]
UINT8 = _core.data_types["uint8"]
_TWO_BYTES = _core.data_types["float16"]  # stands for 16-bit integers: user reductions use only the size of the type

_SAME = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
}
# torch's type -> the number of Tutti's type, for the types that both torch and Tutti have.
_NATIVE: Dict[torch.dtype, int] = {
    getattr(torch, theirs): _core.data_types[ours] for theirs, ours in _SAME.items() if hasattr(torch, theirs)
}
# A complex number is handled as two numbers of this type, which is correct for moving it, and for the reductions in
# _LINEAR.
_COMPLEX = {torch.complex64: _core.data_types["float32"], torch.complex128: _core.data_types["float64"]}
_INTEGERS = {dtype for dtype in _NATIVE if not dtype.is_floating_point}
_SIXTEEN_BITS = {getattr(torch, name): name for name in ("int16", "uint16") if hasattr(torch, name)}


class _Moved(dict):
    """torch.dtype -> (number of Tutti's type, number of its elements in one element of the tensor), for calls that only
    move elements. Has an entry for every type: a complex number is moved as two numbers (_COMPLEX), and an element of
    another type that Tutti does not have as its bytes."""

    def __missing__(self, dtype: torch.dtype) -> Tuple[int, int]:
        if dtype in _NATIVE:
            entry = (_NATIVE[dtype], 1)
        elif dtype in _COMPLEX:
            entry = (_COMPLEX[dtype], 2)
        else:
            entry = (UINT8, torch.empty(0, dtype=dtype).element_size())
        self[dtype] = entry
        return entry


MOVED = _Moved()

# (number of Tutti's type, number of its elements in one element of the tensor, number of the operation, number of the
# user reduction that replaces the operation or 0, whether the call has a factor)
Reduction = Tuple[int, int, int, int, bool]

_PLAIN = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg", "PREMUL_SUM": "premulsum"}
_BITS = {"BAND": "bit_and", "BOR": "bit_or", "BXOR": "bit_xor"}
_OF_BOOL = {"SUM": "max", "PRODUCT": "min", "MIN": "min", "MAX": "max", "BOR": "max", "BAND": "min"}
_LINEAR = ("SUM", "AVG", "PREMUL_SUM")


def _numbered_operations() -> Dict[int, str]:
    """Returns a table: number of a ReduceOp -> its name. In all releases of torch since 1.13, the number of a ReduceOp
    is equal to its hash."""
    kinds: Any = getattr(ReduceOp, "RedOpType", ReduceOp)
    return {int(kind): name for name, kind in kinds.__members__.items()}


_OPERATIONS = _numbered_operations()


def _find(dtype: torch.dtype, name: str) -> Optional[Reduction]:
    operations = _core.reduce_ops
    if dtype is torch.bool:
        if name == "BXOR":
            return (UINT8, 1, 0, _core.reductions["bit_xor"], False)
        return (UINT8, 1, operations[_OF_BOOL[name]], 0, False) if name in _OF_BOOL else None
    if name in _BITS:
        if dtype in _INTEGERS:
            return (_NATIVE[dtype], 1, 0, _core.reductions[_BITS[name]], False)
        return (_TWO_BYTES, 1, 0, _core.reductions[_BITS[name]], False) if dtype in _SIXTEEN_BITS else None
    if name not in _PLAIN:
        return None
    if dtype in _NATIVE:
        return (_NATIVE[dtype], 1, operations[_PLAIN[name]], 0, name == "PREMUL_SUM")
    if dtype in _COMPLEX and name in _LINEAR:
        return (_COMPLEX[dtype], 2, operations[_PLAIN[name]], 0, name == "PREMUL_SUM")
    reduction = _core.reductions.get(f"{_SIXTEEN_BITS.get(dtype)}_{_PLAIN[name]}")
    return None if reduction is None else (_TWO_BYTES, 1, 0, reduction, False)


class _Reductions(dict):
    """(torch.dtype, number of the ReduceOp) -> Reduction. An entry is created when it is first read; this raises
    UnsupportedError or InvalidArgumentError if the type does not have the reduction."""

    def __missing__(self, key: Tuple[torch.dtype, int]) -> Reduction:
        dtype, number = key
        name = _OPERATIONS.get(number)
        if name is None or (name not in _PLAIN and name not in _BITS):
            raise InvalidArgumentError(f"reduction {name or number} is not in torch.distributed.ReduceOp")
        found = _find(dtype, name)
        if found is None:
            raise unsupported(f"ReduceOp.{name} of {dtype} is not supported: convert the tensor to a type that has it")
        self[key] = found
        return found


REDUCTIONS = _Reductions()


def factor_of(operation: ReduceOp, dtype: torch.dtype) -> float:
    """Returns the factor of a PREMUL_SUM as a number. Raises InvalidArgumentError if `dtype` is an integer type and the
    factor is not a whole number; UnsupportedError if this version of torch does not expose the factor."""
    state: Any = None if hasattr(operation, "factor") else operation.__getstate__()
    if state is None and not hasattr(operation, "factor"):
        words = "this version of torch does not expose the factor of a PREMUL_SUM: multiply before the call"
        raise unsupported(words)
    factor = operation.factor if state is None else state[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise InvalidArgumentError(f"the factor of PREMUL_SUM is one number, not a tensor of {factor.numel()}")
        factor = factor.item()
    if dtype not in _INTEGERS:
        return float(factor)
    if factor != int(factor):
        raise InvalidArgumentError(f"PREMUL_SUM of {dtype} takes a whole factor, not {factor}")
    return int(factor)
