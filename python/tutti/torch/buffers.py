"""Checks the memory layout of the tensors of a call, makes contiguous copies of tensors, and treats several tensors as
one buffer. This module does not communicate."""

from __future__ import annotations

import bisect
from typing import Callable, List, Optional, Sequence, Tuple

import torch

from .errors import invalid

Finish = Callable[[], None]


def explain(tensor: torch.Tensor, call: str) -> Exception:
    """Returns the error that states why `call` cannot use the tensor, for which has_values() is false, or which shares
    memory with itself."""
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
    return invalid(
        f"{call} cannot write to a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}, because "
        "several of its elements have the same memory: call .clone()"
    )


def has_values(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a tensor in host or CUDA memory, and the memory contains its values (it is neither sparse nor
    a lazily negated or conjugated view)."""
    try:
        return (
            tensor.layout is torch.strided
            and (tensor.is_cpu or tensor.is_cuda)
            and not (tensor.is_neg() or tensor.is_conj())
        )
    except AttributeError:  # not a tensor
        return False


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether has_values() is true for the tensor, and its memory is contiguous in C order. Calls use the memory of
    such tensors directly. Of others, for example in the order channels_last, they use a contiguous copy. So element i
    of a message is element i of the tensor on every rank, even if the ranks' tensors have different memory layouts."""
    return has_values(tensor) and tensor.is_contiguous()


def to_send(tensor: torch.Tensor, call: str) -> torch.Tensor:
    """Returns the tensor, or a copy of it for which is_whole() is true. Raises InvalidArgumentError if the tensor has
    no values in memory."""
    if is_whole(tensor):
        return tensor
    if not has_values(tensor):
        raise explain(tensor, call)
    return tensor.detach().contiguous()


def to_receive(tensor: torch.Tensor, call: str, in_place: bool = False) -> Tuple[torch.Tensor, Optional[Finish]]:
    """Returns the buffer for the result of a call, and the function to run after the call. The buffer is the tensor
    itself, and the function None, if is_whole() is true. Otherwise the buffer is contiguous memory of its own, and the
    function copies the buffer to the tensor. If `in_place` is true, the tensor is also the input of the call, so the
    buffer gets its values. Raises InvalidArgumentError if the tensor cannot be written to."""
    if is_whole(tensor):
        return tensor, None
    if not has_values(tensor) or _has_elements_in_common(tensor):
        raise explain(tensor, call)
    buffer = tensor.detach().contiguous() if in_place else tensor.new_empty(tensor.shape)
    return buffer, lambda: copy(tensor, buffer)


def check_written(tensors: Sequence[torch.Tensor], call: str) -> None:
    """Raises InvalidArgumentError if a call cannot write to one of the tensors, because several of its elements have
    the same memory."""
    for tensor in tensors:
        if _has_elements_in_common(tensor):
            raise explain(tensor, call)


def _has_elements_in_common(tensor: torch.Tensor) -> bool:
    """Whether several elements of the tensor have the same memory, as in the result of expand(). Detects only strides
    of 0; tensors of unfold() and as_strided() may have elements in common, too."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


def is_sparse(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo and (tensor.is_cpu or tensor.is_cuda)


def check(tensors: Sequence[torch.Tensor], call: str) -> None:
    """Raises InvalidArgumentError unless there is at least one tensor, has_values() is true for all tensors, and all
    have the same device and type. `call` is the name for the message."""
    if not tensors:
        raise invalid(f"{call} takes at least one tensor")
    first = tensors[0]
    for tensor in tensors:
        if not has_values(tensor):
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

    def use_tensors(self, unit: int) -> None:
        """Uses the tensors themselves as the buffer. The lowest address of a tensor that is not empty becomes
        `address`. The distances from it become the displacements, unless each tensor starts at the end of the previous
        one. `unit`: bytes of an element of Tutti's type."""
        filled = [(tensor.data_ptr(), bytes_of(tensor)) for tensor in self.tensors if tensor.numel()]
        self.address = min((start for start, _ in filled), default=0)
        if any(start + size != after for (start, size), (after, _) in zip(filled, filled[1:])):
            places = [tensor.data_ptr() for tensor in self.tensors]
            self.displacements = [(p - self.address) // unit if n else 0 for p, n in zip(places, self.counts)]

    def can_be_used(self, writes: bool) -> bool:
        """Whether a call can use the tensors themselves as its input, or if `writes` is true, as its output. All must
        be contiguous, and those of an output must not overlap."""
        return all(tensor.is_contiguous() for tensor in self.tensors) and not (writes and not is_disjoint(self.tensors))

    def extent(self) -> Tuple[int, int]:
        """Returns the address of the first byte of all tensors, and the address after the last byte; (0, 0) if all are
        empty."""
        ends = [extent(tensor) for tensor in self.tensors if tensor.numel()]
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
    writes to inference tensors outside of inference mode, and does not change the tensor's version, because calls that
    write to the tensor's own memory do not, either."""
    if target.is_inference() and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            target.copy_(source.reshape(target.shape))
    else:
        target.data.copy_(source.detach().reshape(target.shape))


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


def is_disjoint(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no two of the tensors overlap in memory."""
    spans = sorted(extent(tensor) for tensor in tensors if tensor.numel())
    return all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))


def check_apart(outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], call: str) -> None:
    """Raises InvalidArgumentError if the result of one of several calls that run at the same time would change another
    one: if two outputs overlap, or an output overlaps the input of another call. Element i of both lists belongs to
    call i. Tensors that are not contiguous do not count, because calls use copies of them."""
    if len(outputs) != len(inputs):
        raise invalid(f"{call} of {len(inputs)} inputs takes as many outputs, not {len(outputs)}")
    every = [(number, each) for number, of_call in enumerate(outputs) for each in of_call]
    numbered = [(number, each) for number, each in every if each.numel() and each.is_contiguous()]
    if not is_disjoint([each for _, each in numbered]):
        raise invalid(f"{call}: two of the outputs overlap in memory")
    spans = sorted((*extent(each), number) for number, each in numbered)
    starts = [start for start, _, _ in spans]
    for number, input in enumerate(inputs):
        start, end = extent(input) if input.is_contiguous() else (0, 0)
        at = max(0, bisect.bisect_right(starts, start) - 1)
        while start < end and at < len(spans) and spans[at][0] < end:
            if spans[at][1] > start and spans[at][2] != number:
                raise invalid(f"{call}: the output of call {spans[at][2]} overlaps the input of call {number}")
            at += 1


def overlap(one: Tuple[int, int], other: Tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # torch < 2.1 has no Tensor.nbytes


def extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """Returns the address of the tensor's first byte, and the address after its last byte. If the tensor is not
    contiguous, memory in between may belong to others."""
    address = tensor.data_ptr()
    if tensor.is_contiguous() or tensor.numel() == 0:
        return (address, address + bytes_of(tensor))
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (address, address + (last + 1) * tensor.element_size())


def unit_bytes(tensor: torch.Tensor, multiplier: int) -> int:
    return tensor.element_size() // multiplier
