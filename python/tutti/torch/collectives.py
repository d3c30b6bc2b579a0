"""Collectives: the calls of a process group whose input and output are one tensor each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # in older releases, torch.distributed lacks some options classes

from ..errors import Error
from .base import SAYS_WHETHER_ASYNC, Base, Tensors
from .buffers import bytes_of, check, explain, extent, is_dense, is_sparse, overlap
from .errors import invalid
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
            return self.allreduce_coalesced(tensors, opts)
        tensor = tensors[0]
        if not is_dense(tensor):
            if self._open_batch() is None and is_sparse(tensor):
                return all_reduce_sparse(self, tensor, opts)
            raise explain(tensor, "all_reduce")
        if SAYS_WHETHER_ASYNC and not opts.asyncOp and not self._batches and tensor.is_cpu:
            if profiling():
                return recorded(ALL_REDUCE, lambda: self._all_reduce_now(tensor, opts))
            return self._all_reduce_now(tensor, opts)
        dtype, multiplier, op, reduction, scale = self._reduction(opts, tensor.dtype)
        address = tensor.data_ptr()
        count = tensor.numel() * multiplier
        return self._collective(opts, tensor, tensors, ALL_REDUCE, address, address, count, dtype, op, 0, scale, reduction)

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
        check_each(tensors, "all_reduce_coalesced")

        def add() -> None:
            for tensor in tensors:
                self.allreduce([tensor], opts)

        return self._together(opts, add)

    def broadcast(self, tensors: Any, opts: Any = None, root: int = 0, timeout: Optional[timedelta] = None) -> Any:
        if type(tensors) is not list or not isinstance(opts, c10d.BroadcastOptions):
            root = opts if isinstance(opts, int) else root
            opts = options_of(c10d.BroadcastOptions, opts, timeout, rootRank=root)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) != 1:
            raise invalid(f"broadcast takes one tensor, not {len(tensors)}")
        tensor = tensors[0]
        if not is_dense(tensor):
            raise explain(tensor, "broadcast")
        dtype, multiplier = MOVED[tensor.dtype]
        address = tensor.data_ptr()
        count = tensor.numel() * multiplier
        return self._collective(opts, tensor, tensors, BROADCAST, address, address, count, dtype, 0, opts.rootRank)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = _SUM, timeout: Optional[timedelta] = None, root: int = 0
    ) -> Any:
        if type(tensors) is not list or not isinstance(opts, c10d.ReduceOptions):
            root = opts if isinstance(opts, int) else root
            opts = options_of(c10d.ReduceOptions, opts, timeout, reduceOp=op, rootRank=root)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) != 1:
            raise invalid(f"reduce takes one tensor, not {len(tensors)}")
        tensor = tensors[0]
        if not is_dense(tensor):
            raise explain(tensor, "reduce")
        dtype, multiplier, op, reduction, scale = self._reduction(opts, tensor.dtype)
        address = tensor.data_ptr()
        target = address if opts.rootRank == self._rank else 0
        count = tensor.numel() * multiplier
        return self._collective(
            opts, tensor, tensors, REDUCE, address, target, count, dtype, op, opts.rootRank, scale, reduction
        )

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
        source = input.data_ptr()
        target = output.data_ptr()
        held: Any = input
        if overlap(extent(input), extent(output)) and source != target + self._rank * bytes_of(input):
            held = input.clone()  # because the input overlaps blocks of the output that are not this rank's own
            source = held.data_ptr()
        return self._collective(
            opts, output, [output], ALL_GATHER, source, target, input.numel() * multiplier, dtype, held=(input, held)
        )

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts, None) if opts is None else opts
        check((output, input), "reduce_scatter")
        if input.numel() != output.numel() * self._size:
            raise invalid(
                f"reduce_scatter of {input.numel()} elements over {self._size} ranks does not give the "
                f"{output.numel()} that the output has"
            )
        dtype, multiplier, op, reduction, scale = self._reduction(opts, input.dtype)
        source = input.data_ptr()
        held: Any = input
        if overlap(extent(input), extent(output)) and output.data_ptr() != source + self._rank * bytes_of(output):
            held = input.clone()
            source = held.data_ptr()
        return self._collective(
            opts, output, [output], REDUCE_SCATTER, source, output.data_ptr(), output.numel() * multiplier, dtype, op,
            0, scale, reduction, held=(input, held),
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
        source, target = input.data_ptr(), output.data_ptr()
        held: Any = input
        if overlap(extent(input), extent(output)):
            held = input.clone()
            source = held.data_ptr()
        if not output_split_sizes and not input_split_sizes:
            rows = input.size(0) if input.dim() else 1
            if input.numel() != output.numel() or rows % self._size:
                raise invalid(
                    f"all_to_all without split sizes takes tensors of equal length, a multiple of {self._size} along "
                    f"the first dimension, not shapes {tuple(input.shape)} and {tuple(output.shape)}"
                )
            count = input.numel() // self._size * multiplier
            return self._collective(opts, output, [output], ALL_TO_ALL, source, target, count, dtype, held=(input, held))
        counts = (
            self._split(input, input_split_sizes, multiplier, "input"),
            self._split(output, output_split_sizes, multiplier, "output"),
            None,
            None,
        )
        return self._collective(
            opts, output, [output], ALL_TO_ALL, source, target, 0, dtype, counts=counts, held=(input, held)
        )

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

        def add() -> None:
            for output, input in zip(outputs, inputs):
                self._allgather_base(output, input, opts)

        return self._together(opts, add)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts, None) if opts is None else opts

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


def check_each(tensors: Tensors, call: str) -> None:
    """Raises InvalidArgumentError unless there is at least one tensor, and is_dense() is true for all. Used to check
    all tensors of a batch before the first call is added."""
    if not tensors:
        raise invalid(f"{call} takes at least one tensor")
    for tensor in tensors:
        if not is_dense(tensor):
            raise explain(tensor, call)
