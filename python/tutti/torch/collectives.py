"""Collectives: the calls of a process group whose input and output are one tensor each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # in older releases, torch.distributed lacks some options classes

from ..errors import Error
from .base import SAYS_WHETHER_ASYNC, Base, Tensors
from .buffers import Finish, bytes_of, check, check_apart, check_written, copy, explain, extent, has_values, is_disjoint
from .buffers import is_sparse, is_whole, overlap, to_receive, to_send
from .errors import invalid, unsupported
from .events import profiling, recorded
from .sparse import all_reduce_sparse
from .tables import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, MOVED, REDUCE, REDUCE_SCATTER
from .tables import REDUCTIONS, factor_of

_SUM = dist.ReduceOp.SUM
_ALL_REDUCE_OPTIONS = (c10d.AllreduceOptions, c10d.AllreduceCoalescedOptions)


def options_of(kind: Any, opts: Any, timeout: Optional[timedelta], **fields: Any) -> Any:
    """Returns the options object of a call, of class `kind`. This is `opts` if it is such an object. torch also has a
    form of calls without this object, which passes a reduction or a root instead; for these calls, creates the object
    with `timeout` and the attributes `fields`."""
    if isinstance(opts, kind):
        return opts
    made = kind[0]() if isinstance(kind, tuple) else kind()
    if timeout is not None:
        made.timeout = timeout
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Collectives(Base):
    def _reduction(self, opts: Any, dtype: torch.dtype) -> Tuple[int, int, int, int, Any]:
        """Returns the arguments of Tutti for a reduction: the data type, the number of its elements in one element of
        the tensor, the operation, the user reduction (0: none), and the factor of PREMUL_SUM (None for other
        reductions)."""
        operation = opts.reduceOp
        number, multiplier, op, reduction, factored = REDUCTIONS[dtype, hash(operation)]
        return number, multiplier, op, reduction, factor_of(operation, dtype) if factored else None

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: Optional[timedelta] = None) -> Any:
        if type(tensors) is not list or not isinstance(opts, _ALL_REDUCE_OPTIONS):
            op = op if opts is None or isinstance(opts, _ALL_REDUCE_OPTIONS) else opts
            opts = options_of(_ALL_REDUCE_OPTIONS, opts, timeout, reduceOp=op)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) != 1:
            return self._all_reduce_several(tensors, opts)
        tensor = tensors[0]
        if not is_whole(tensor):
            if self._open_batch() is None and is_sparse(tensor):
                return all_reduce_sparse(self, tensor, opts)
            return self._all_reduce_in(*to_receive(tensor, "all_reduce", in_place=True), tensors, opts)
        if SAYS_WHETHER_ASYNC and not opts.asyncOp and not self._batches and tensor.is_cpu:
            if profiling():
                return recorded(ALL_REDUCE, lambda: self._all_reduce_now(tensor, opts))
            return self._all_reduce_now(tensor, opts)
        return self._all_reduce_in(tensor, None, tensors, opts)

    def _all_reduce_in(self, buffer: torch.Tensor, finish: Optional[Finish], tensors: Tensors, opts: Any) -> Any:
        """An all_reduce in place of `buffer`, for which is_whole() is true. `finish` runs after the call, and `tensors`
        are then the result."""
        dtype, multiplier, op, reduction, scale = self._reduction(opts, buffer.dtype)
        address = buffer.data_ptr()
        count = buffer.numel() * multiplier
        return self._collective(
            opts, buffer, tensors, ALL_REDUCE, address, address, count, dtype, op, 0, scale, reduction, finish=finish
        )

    def _all_reduce_several(self, tensors: Tensors, opts: Any) -> Any:
        """As with gloo, one all_reduce over all tensors of all ranks. Each of the tensors gets the result."""
        check_alike(tensors, "all_reduce")
        combine = _COMBINE.get(hash(opts.reduceOp))
        if combine is None:
            raise unsupported(f"all_reduce of {len(tensors)} tensors with {opts.reduceOp}: pass one tensor")
        check_written(tensors, "all_reduce")
        total = tensors[0].detach().clone(memory_format=torch.contiguous_format)
        try:
            for tensor in tensors[1:]:
                total = combine(total, tensor.detach())
        except NotImplementedError:  # torch has no such function for this type
            raise unsupported(f"all_reduce of {len(tensors)} tensors of {total.dtype}: pass one tensor") from None

        def finish() -> None:
            for tensor in tensors:
                copy(tensor, total)

        return self._all_reduce_in(total, finish, tensors, opts)

    def _all_reduce_now(self, tensor: torch.Tensor, opts: Any) -> Any:
        """A fast version of _collective() for a tensor in host memory if the caller waits at once. It makes few Python
        calls, because each one adds much to the time of a short message."""
        operation = opts.reduceOp
        timeout = opts.timeout
        dtype, multiplier, op, reduction, factored = REDUCTIONS[tensor.dtype, hash(operation)]
        address = tensor.data_ptr()
        limit = self._timeout_ms if timeout.days < 0 else self._timeout_of(opts)
        self._sequence += 1
        try:
            if reduction or factored:
                scale = factor_of(operation, tensor.dtype) if factored else None
                rest = (scale, None, None, None, None, None, reduction)
                self._run(ALL_REDUCE, address, address, tensor.numel() * multiplier, dtype, op, 0, 0, limit, *rest)
            else:
                self._run(ALL_REDUCE, address, address, tensor.numel() * multiplier, dtype, op, 0, 0, limit)
        except Error as error:
            raise self._convert_error(error) from None
        return self._done

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = options_of(c10d.AllreduceCoalescedOptions, opts, None) if opts is None else opts
        for tensor in some(tensors, "all_reduce_coalesced"):
            if not has_values(tensor):
                raise explain(tensor, "all_reduce_coalesced")
        # As with gloo, each tensor is reduced with the values that it has now, even if tensors overlap. The results are
        # stored in the order of the list.
        buffer_of = _in_place if is_disjoint(tensors) else _copy_of
        buffers = [buffer_of(tensor) for tensor in tensors]

        def add() -> None:
            for tensor, (buffer, finish) in zip(tensors, buffers):
                self._all_reduce_in(buffer, finish, [tensor], opts)

        return self._together(opts, add)

    def broadcast(self, tensors: Any, opts: Any = None, root: int = 0, timeout: Optional[timedelta] = None) -> Any:
        if type(tensors) is not list or not isinstance(opts, c10d.BroadcastOptions):
            root = opts if isinstance(opts, int) else root
            opts = options_of(c10d.BroadcastOptions, opts, timeout, rootRank=root)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        tensor = tensors[0] if len(tensors) == 1 else self._tensor_of_root(tensors, opts)
        is_root = opts.rootRank == self._rank
        buffer, finish = (to_send(tensor, "broadcast"), None) if is_root else to_receive(tensor, "broadcast")
        if len(tensors) > 1:
            finish = self._copy_to_all(tensors, buffer)
        dtype, multiplier = MOVED[buffer.dtype]
        address = buffer.data_ptr()
        count = buffer.numel() * multiplier
        return self._collective(
            opts, buffer, tensors, BROADCAST, address, address, count, dtype, 0, opts.rootRank, finish=finish
        )

    def _tensor_of_root(self, tensors: Tensors, opts: Any) -> torch.Tensor:
        """As with gloo, a broadcast of several tensors sends tensor number `rootTensor` of the root to all tensors of
        all ranks."""
        check_alike(tensors, "broadcast")
        check_written(tensors, "broadcast")
        if not 0 <= opts.rootTensor < len(tensors):
            raise invalid(f"broadcast: there is no tensor {opts.rootTensor} among {len(tensors)}")
        return tensors[opts.rootTensor]

    def _copy_to_all(self, tensors: Tensors, source: torch.Tensor) -> Finish:
        def finish() -> None:
            for tensor in tensors:
                if tensor is not source:
                    copy(tensor, source)

        return finish

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: Optional[timedelta] = None, root: int = 0
    ) -> Any:
        if type(tensors) is not list or not isinstance(opts, c10d.ReduceOptions):
            root = opts if isinstance(opts, int) else root
            opts = options_of(c10d.ReduceOptions, opts, timeout, reduceOp=op, rootRank=root)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) != 1:
            raise invalid(f"reduce takes one tensor, not {len(tensors)}")
        is_root = opts.rootRank == self._rank
        if is_root:
            buffer, finish = to_receive(tensors[0], "reduce", in_place=True)
        else:
            buffer, finish = to_send(tensors[0], "reduce"), None
        dtype, multiplier, op, reduction, scale = self._reduction(opts, buffer.dtype)
        address = buffer.data_ptr()
        target = address if is_root else 0
        count = buffer.numel() * multiplier
        return self._collective(
            opts, buffer, tensors, REDUCE, address, target, count, dtype, op, opts.rootRank, scale, reduction,
            finish=finish,
        )  # fmt: skip

    # ---- one input and one output tensor; torch 2.13 names the first three functions all_gather_single and so on

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = options_of(c10d.AllgatherOptions, opts, None) if opts is None else opts
        check((output, input), "all_gather")
        if output.numel() != input.numel() * self._size:
            raise invalid(
                f"all_gather of {input.numel()} elements from {self._size} ranks gives {input.numel() * self._size}, "
                f"but the output has {output.numel()}"
            )
        dtype, multiplier = MOVED[input.dtype]
        held = to_send(input, "all_gather")
        buffer, finish = to_receive(output, "all_gather")
        own = held.data_ptr() == buffer.data_ptr() + self._rank * bytes_of(held)
        if overlap(extent(held), extent(buffer)) and not own:
            held = held.clone()  # because the input overlaps blocks of the output that are not this rank's own
        return self._collective(
            opts, buffer, [output], ALL_GATHER, held.data_ptr(), buffer.data_ptr(), held.numel() * multiplier, dtype,
            finish=finish, held=(input, held),
        )  # fmt: skip

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts, None) if opts is None else opts
        check((output, input), "reduce_scatter")
        if input.numel() != output.numel() * self._size:
            raise invalid(
                f"reduce_scatter of {input.numel()} elements over {self._size} ranks does not give the "
                f"{output.numel()} that the output has"
            )
        dtype, multiplier, op, reduction, scale = self._reduction(opts, input.dtype)
        held = to_send(input, "reduce_scatter")
        buffer, finish = to_receive(output, "reduce_scatter")
        own = buffer.data_ptr() == held.data_ptr() + self._rank * bytes_of(buffer)
        if overlap(extent(held), extent(buffer)) and not own:
            held = held.clone()
        return self._collective(
            opts, buffer, [output], REDUCE_SCATTER, held.data_ptr(), buffer.data_ptr(), buffer.numel() * multiplier,
            dtype, op, 0, scale, reduction, finish=finish, held=(input, held),
        )  # fmt: skip

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Optional[List[int]] = None,
        input_split_sizes: Optional[List[int]] = None,
        opts: Any = None,
        timeout: Optional[timedelta] = None,
    ) -> Any:
        opts = options_of(c10d.AllToAllOptions, opts, timeout) if opts is None else opts
        check((output, input), "all_to_all")
        dtype, multiplier = MOVED[input.dtype]
        held = to_send(input, "all_to_all")
        buffer, finish = to_receive(output, "all_to_all")
        if overlap(extent(held), extent(buffer)):
            held = held.clone()
        source, target = held.data_ptr(), buffer.data_ptr()
        if not output_split_sizes and not input_split_sizes:
            rows = input.size(0) if input.dim() else 1
            if input.numel() != output.numel() or rows % self._size:
                raise invalid(
                    f"all_to_all without split sizes takes tensors of equal length, a multiple of {self._size} along "
                    f"the first dimension, not shapes {tuple(input.shape)} and {tuple(output.shape)}"
                )
            count = input.numel() // self._size * multiplier
            return self._collective(
                opts, buffer, [output], ALL_TO_ALL, source, target, count, dtype, finish=finish, held=(input, held)
            )
        counts = (
            self._split(input, input_split_sizes, multiplier, "input"),
            self._split(output, output_split_sizes, multiplier, "output"),
            None,
            None,
        )
        return self._collective(
            opts, buffer, [output], ALL_TO_ALL, source, target, 0, dtype, counts=counts, finish=finish,
            held=(input, held),
        )  # fmt: skip

    def _split(self, tensor: torch.Tensor, sizes: Optional[List[int]], multiplier: int, name: str) -> List[int]:
        """Returns the lengths of the blocks in elements of Tutti's type, of which `multiplier` are one element of the
        tensor. `sizes` are the lengths of the blocks along the first dimension; if it is empty or None, all blocks have
        the same length. `name` is "input" or "output"."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not sizes:
            if rows % self._size:
                raise invalid(f"all_to_all: {rows} rows of the {name} are no multiple of {self._size}: pass splits")
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            raise invalid(
                f"all_to_all takes {self._size} {name} split sizes of together {rows} (rows of the {name}), not {sizes}"
            )
        row = tensor.numel() // rows * multiplier if rows else 0
        return [size * row for size in sizes]

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        opts = options_of(c10d.AllgatherOptions, opts, None) if opts is None else opts
        check_apart([[output] for output in outputs], inputs, "all_gather_into_tensor_coalesced")

        def add() -> None:
            for output, input in zip(outputs, inputs):
                self._allgather_base(output, input, opts)

        return self._together(opts, add)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts, None) if opts is None else opts
        check_apart([[output] for output in outputs], inputs, "reduce_scatter_tensor_coalesced")

        def add() -> None:
            for output, input in zip(outputs, inputs):
                self._reduce_scatter_base(output, input, opts)

        return self._together(opts, add)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        return self._allgather_base(output, input, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        return self._reduce_scatter_base(output, input, opts)

    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # ---- barriers

    def barrier(self, opts: Any = None, timeout: Optional[timedelta] = None) -> Any:
        opts = options_of(c10d.BarrierOptions, opts, timeout) if opts is None else opts
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            self._synchronize(device)  # so that the barrier also waits for earlier calls on CUDA memory
        return self._collective(opts, _NOTHING, [], BARRIER, 0, 0, 0, 0)

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose DeadlineError names the missing ranks that are known, whether `wait_all_ranks` is True or
        False."""
        opts = options_of(c10d.BarrierOptions, None, timeout)
        if SAYS_WHETHER_ASYNC:
            opts.asyncOp = False
        self._collective(opts, _NOTHING, [], BARRIER, 0, 0, 0, 0).wait()


_NOTHING = torch.empty(0)


def some(tensors: Tensors, call: str) -> Tensors:
    """Returns the tensors. Raises InvalidArgumentError if there are none."""
    if not tensors:
        raise invalid(f"{call} takes at least one tensor")
    return tensors


def check_alike(tensors: Tensors, call: str) -> None:
    """Raises InvalidArgumentError unless the tensors are suitable for one call that combines them: at least one, with
    values in memory, and all of the same device, type and shape."""
    check(tensors, call)
    for tensor in tensors:
        if tensor.shape != tensors[0].shape:
            shapes = f"{tuple(tensors[0].shape)} and {tuple(tensor.shape)}"
            raise invalid(f"{call} of several tensors takes equal shapes, not {shapes}")


def _in_place(tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[Finish]]:
    return to_receive(tensor, "all_reduce_coalesced", in_place=True)


def _copy_of(tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[Finish]]:
    """Like _in_place(), but the buffer is always a copy."""
    buffer, finish = _in_place(tensor)
    if finish is not None:
        return buffer, finish
    buffer = tensor.detach().clone()
    return buffer, lambda: copy(tensor, buffer)


# Number of a ReduceOp -> the function that combines two tensors in this way. The other operations divide or multiply
# once, so they are not for several tensors of a rank.
_COMBINE: Dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    hash(dist.ReduceOp.SUM): lambda a, b: a | b if a.dtype is torch.bool else a + b,
    hash(dist.ReduceOp.PRODUCT): lambda a, b: a & b if a.dtype is torch.bool else a * b,
    hash(dist.ReduceOp.MIN): torch.minimum,
    hash(dist.ReduceOp.MAX): torch.maximum,
    hash(dist.ReduceOp.BAND): torch.bitwise_and,
    hash(dist.ReduceOp.BOR): torch.bitwise_or,
    hash(dist.ReduceOp.BXOR): torch.bitwise_xor,
}
