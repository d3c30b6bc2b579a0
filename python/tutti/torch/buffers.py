"""Checks the memory layout of the tensors of a call, and treats several tensors as one buffer. This module does not
communicate."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

import torch

from .errors import invalid

Finish = Callable[[], None]


def explain(tensor: torch.Tensor, call: str) -> Exception:
    """Returns the error that states why `call` cannot use the tensor, for which is_whole() or is_dense() is false."""
    if not isinstance(tensor, torch.Tensor):
        return invalid(f"{call} takes tensors, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        return invalid(f"{call} takes dense tensors, this one's layout is {tensor.layout}: call .to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        return invalid(f"{call} takes tensors of host or CUDA memory, this one is on {tensor.device}")
    # torch negates or conjugates such a tensor only when it is read: the memory contains other values.
    if tensor.is_neg():
        return invalid(f"{call} takes tensors that store their values, this one is negated: call .resolve_neg()")
    if tensor.is_conj():
        return invalid(f"{call} takes tensors that store their values, this one is conjugated: call .resolve_conj()")
    return invalid(f"{call} takes contiguous tensors, one of shape {tuple(tensor.shape)} is not: call .contiguous()")


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a tensor in contiguous host or CUDA memory, and the memory contains its values (it is not a
    lazily negated or conjugated view)."""
    try:
        return (
            tensor.layout is torch.strided
            and tensor.is_contiguous()
            and (tensor.is_cpu or tensor.is_cuda)
            and not (tensor.is_neg() or tensor.is_conj())
        )
    except AttributeError:  # not a tensor
        return False


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether is_whole() is true for the tensor, or would be true if its elements, which are contiguous in the order
    channels_last, were contiguous in C order. This is sufficient for calls that do not split the tensor, if the tensors
    of all ranks have the same layout."""
    return is_whole(tensor) or (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.dim() in _FORMATS
        and tensor.is_contiguous(memory_format=_FORMATS[tensor.dim()])
        and is_whole(as_row(tensor))
    )


def as_row(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements of a tensor for which is_dense() is true in the order of its memory. A tensor that is not
    contiguous in C order becomes a view with one dimension; other tensors are returned as they are."""
    return tensor if tensor.is_contiguous() else tensor.detach().as_strided((tensor.numel(),), (1,))


def is_sparse(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo and (tensor.is_cpu or tensor.is_cuda)


def check(tensors: Sequence[torch.Tensor], call: str) -> None:
    """Raises InvalidArgumentError unless there is at least one tensor, is_whole() is true for all tensors, and all have
    the same device and type. `call` is the name for the message."""
    if not tensors:
        raise invalid(f"{call} takes at least one tensor")
    first = tensors[0]
    for tensor in tensors:
        if not is_whole(tensor):
            raise explain(tensor, call)
        if tensor.dtype is not first.dtype:
            raise invalid(f"{call} takes tensors of one type, not {first.dtype} and {tensor.dtype}")
        if tensor.device != first.device:
            raise invalid(f"{call} takes tensors of one device, not {first.device} and {tensor.device}")


class Row:
    """The tensors of a list, one for each rank, as one buffer: either the tensors themselves, or a flat copy of them.

    `address` is the start of the buffer. `counts` are the lengths of the tensors, and `displacements` their offsets
    from `address`, or None if the tensors follow each other in memory. Both are in elements of Tutti's type:
    `multiplier` such elements are one element of a tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], multiplier: int):
        self.tensors = tensors
        self.counts = [tensor.numel() * multiplier for tensor in tensors]
        self.flat: Optional[torch.Tensor] = None
        self.address = 0
        self.displacements: Optional[List[int]] = None

    def is_contiguous_row(self) -> bool:
        """Whether each tensor starts at the end of the previous one; empty tensors are ignored. Sets `address` to the
        start of the first tensor that is not empty."""
        start: Optional[int] = None
        for tensor in self.tensors:
            if tensor.numel() == 0:
                continue
            if start is not None and tensor.data_ptr() != start:
                return False
            if start is None:
                self.address = tensor.data_ptr()
            start = tensor.data_ptr() + bytes_of(tensor)
        return True

    def is_disjoint(self) -> bool:
        """Whether no two of the tensors overlap in memory."""
        ends = sorted(extent(tensor) for tensor in self.tensors if tensor.numel())
        return all(one[1] <= other[0] for one, other in zip(ends, ends[1:]))

    def spread(self, unit: int) -> None:
        """Uses the tensors themselves as the buffer: the lowest address of a tensor becomes `address`, and the
        distances from it the displacements. `unit`: bytes of an element of Tutti's type."""
        places = [tensor.data_ptr() for tensor in self.tensors]
        self.address = min((p for p, count in zip(places, self.counts) if count), default=0)
        self.displacements = [(p - self.address) // unit if n else 0 for p, n in zip(places, self.counts)]

    def extent(self) -> Tuple[int, int]:
        """Returns the address of the first byte of all tensors, and the address after the last byte; (0, 0) if all are
        empty."""
        ends = [(tensor.data_ptr(), tensor.data_ptr() + bytes_of(tensor)) for tensor in self.tensors if tensor.numel()]
        return (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0, 0)

    def flatten(self, fill: bool) -> None:
        """Uses a new flat buffer instead of the tensors. If `fill` is true, copies the tensors' values to it."""
        first = self.tensors[0]
        total = sum(tensor.numel() for tensor in self.tensors)
        self.flat = torch.empty(total, dtype=first.dtype, device=first.device)
        self.address = self.flat.data_ptr()
        if fill:
            for part, tensor in zip(self._parts(), self.tensors):
                copy(part, tensor)

    def _parts(self) -> Sequence[torch.Tensor]:
        assert self.flat is not None
        return self.flat.split([tensor.numel() for tensor in self.tensors])

    def copy_back(self) -> None:
        """Copies the contents of the flat buffer, if there is one, to the tensors."""
        if self.flat is not None:
            for part, tensor in zip(self._parts(), self.tensors):
                copy(tensor, part)


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies the elements of `source` to `target` in their order, even if the shapes differ. Unlike copy_(), also
    writes to inference tensors outside of inference mode."""
    if target.is_inference() and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            target.view(-1).copy_(source.view(-1))
    else:
        target.detach().view(-1).copy_(source.detach().view(-1))


def share_memory(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether some input shares memory with some output."""
    spans = [(*extent(tensor), 0) for tensor in inputs if tensor.numel()]
    spans += [(*extent(tensor), 1) for tensor in outputs if tensor.numel()]
    ends = [0, 0]
    for start, end, side in sorted(spans):
        if start < ends[1 - side]:
            return True
        ends[side] = max(ends[side], end)
    return False


def overlap(one: Tuple[int, int], other: Tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # torch < 2.1 has no Tensor.nbytes


def extent(tensor: torch.Tensor) -> Tuple[int, int]:
    address = tensor.data_ptr()
    return (address, address + bytes_of(tensor))


def unit_bytes(tensor: torch.Tensor, multiplier: int) -> int:
    return tensor.element_size() // multiplier
