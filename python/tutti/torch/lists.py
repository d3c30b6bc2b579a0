"""Lists: the collectives that take a list with one tensor for each rank.

Tutti reads and writes the tensors where they are, as the blocks of a v-variant with displacements. This avoids a copy
through one flat buffer. A flat buffer is used only if a tensor is not contiguous, or if the tensors overlap in a way
that does not allow this. Each rank decides this for itself, because the choice has no effect on the messages.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..errors import Error
from .base import Tensors
from .buffers import Row, check, check_apart, check_written, copy, extent, overlap, share_memory, to_receive, to_send
from .buffers import unit_bytes
from .collectives import Collectives, check_alike, options_of
from .errors import invalid
from .tables import ALL_GATHER, ALL_TO_ALL, GATHER, MOVED, REDUCE_SCATTER, SCATTER, UINT8

# The counts that a rank other than the root passes to a gather or scatter: an empty list, which makes the call a
# v-variant. Only the root passes the lengths of all ranks' blocks.
_OF_THE_ROOT: Sequence[Optional[List[int]]] = ([], None, None, None)


def _only(lists: Any, call: str) -> Any:
    """Returns the only element of a list. torch passes lists of lists, because in old versions one process could have
    several GPUs. Raises InvalidArgumentError if the list has another length."""
    if len(lists) != 1:
        raise invalid(f"{call} takes one list of tensors for one tensor, not {len(lists)}")
    return lists[0]


class Lists(Collectives):
    def _row(self, tensors: Tensors, one: torch.Tensor, multiplier: int, call: str, written: Tensors) -> Row:
        """`one` is this rank's tensor, and `written` are the output tensors of the call: those of the row, or `one`."""
        check([one, *tensors], call)
        check_written(written, call)
        if len(tensors) != self._size:
            raise invalid(f"{call} of {self._size} ranks takes a list of {self._size} tensors, not of {len(tensors)}")
        mine = tensors[self._rank]
        if mine.numel() != one.numel():
            raise invalid(
                f"{call}: this rank's tensor has {one.numel()} elements, but the tensor for it in the list "
                f"(number {self._rank}) has {mine.numel()}"
            )
        return Row(tensors, multiplier)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = options_of(c10d.AllgatherOptions, opts, timeout)
        if len(inputs) > 1:
            return self._all_gather_several(outputs, inputs, opts)
        targets, input = _only(outputs, "all_gather"), _only(inputs, "all_gather")
        dtype, multiplier = MOVED[input.dtype]
        row = self._row(targets, input, multiplier, "all_gather", targets)
        source = to_send(input, "all_gather")
        own = targets[self._rank].data_ptr() == source.data_ptr()
        clear = own or not overlap(extent(source), row.extent())
        self._choose_buffer(row, clear, unit_bytes(input, multiplier), False)
        finish = row.copy_back if row.flat is not None else None
        counts = (None, row.counts, None, row.displacements)
        return self._collective(
            opts, source, list(targets), ALL_GATHER, source.data_ptr(), row.address, 0, dtype, counts=counts,
            finish=finish, held=[input, source, row.flat],
        )  # fmt: skip

    def _all_gather_several(self, outputs: Any, inputs: Tensors, opts: Any) -> Any:
        """As with gloo: each rank has k inputs, and each of its k lists of outputs gets all inputs of all ranks, those
        of rank 0 first."""
        check_alike([*inputs, *(target for targets in outputs for target in targets)], "all_gather")
        total = len(inputs) * self._size
        if len(outputs) != len(inputs) or any(len(targets) != total for targets in outputs):
            raise invalid(
                f"all_gather of {len(inputs)} tensors of {self._size} ranks takes {len(inputs)} lists of {total}"
            )
        for targets in outputs:
            check_written(targets, "all_gather")
        source = torch.stack([tensor.detach() for tensor in inputs])
        gathered = source.new_empty((total, *source.shape[1:]))

        def finish() -> None:
            for targets in outputs:
                for target, value in zip(targets, gathered):
                    copy(target, value)

        dtype, multiplier = MOVED[source.dtype]
        flat = [target for targets in outputs for target in targets]
        return self._collective(
            opts, gathered, flat, ALL_GATHER, source.data_ptr(), gathered.data_ptr(), source.numel() * multiplier,
            dtype, finish=finish, held=[source, list(inputs)],
        )  # fmt: skip

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, op: Any = dist.ReduceOp.SUM, timeout: Any = None
    ) -> Any:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if not isinstance(opts, c10d.ReduceScatterOptions):
            opts = options_of(c10d.ReduceScatterOptions, None, timeout, reduceOp=op if opts is None else opts)
        output, sources = _only(outputs, "reduce_scatter"), _only(inputs, "reduce_scatter")
        dtype, multiplier, op, reduction, scale = self._reduction(opts, output.dtype)
        row = self._row(sources, output, multiplier, "reduce_scatter", [output])
        buffer, finish = to_receive(output, "reduce_scatter")
        own = sources[self._rank].data_ptr() == buffer.data_ptr()
        clear = own or not overlap(extent(buffer), row.extent())
        self._choose_buffer(row, clear, unit_bytes(output, multiplier), True)
        counts = (row.counts, None, row.displacements, None)
        return self._collective(
            opts, buffer, [output], REDUCE_SCATTER, row.address, buffer.data_ptr(), 0, dtype, op, 0, scale, reduction,
            counts=counts, finish=finish, held=[list(sources), row.flat],
        )  # fmt: skip

    def _choose_buffer(self, row: Row, clear: bool, unit: int, fill: bool) -> None:
        """Chooses the buffer of the row. `clear`: the tensors do not overlap the other buffer of the call. `fill`: the
        row is the input of the call, otherwise its output. The buffer is the tensors themselves if they are clear and
        contiguous and, for an output, do not overlap each other. Otherwise it is a flat copy. `unit`: as in
        Row.use_tensors()."""
        if not clear or not row.can_be_used(not fill):
            row.flatten(fill)
        else:
            row.use_tensors(unit)

    def allgather_coalesced(self, outputs: List[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        opts = options_of(c10d.AllgatherOptions, opts, None)
        of_calls = [[of_rank[number] for of_rank in outputs] for number in range(len(inputs))]
        check_apart(of_calls, inputs, "all_gather_coalesced")

        def add() -> None:
            for number, input in enumerate(inputs):
                self.allgather([[of_rank[number] for of_rank in outputs]], [input], opts)

        return self._together(opts, add)

    # ---- one message for each pair of ranks

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None) -> Any:
        opts = options_of(c10d.AllToAllOptions, opts, timeout)
        check([*outputs, *inputs], "all_to_all")
        check_written(outputs, "all_to_all")
        if len(outputs) != self._size or len(inputs) != self._size:
            raise invalid(
                f"all_to_all among {self._size} ranks takes lists of {self._size} tensors, not of {len(inputs)} and "
                f"{len(outputs)}"
            )
        mine, own = outputs[self._rank], inputs[self._rank]
        if mine.numel() != own.numel():
            raise invalid(f"all_to_all: this rank has {own.numel()} elements for itself, but expects {mine.numel()}")
        dtype, multiplier = MOVED[mine.dtype]
        unit = unit_bytes(mine, multiplier)
        targets, sources = Row(outputs, multiplier), Row(inputs, multiplier)
        self._choose_buffer(targets, True, unit, False)
        self._choose_buffer(sources, not share_memory(inputs, outputs), unit, True)
        counts = (sources.counts, targets.counts, sources.displacements, targets.displacements)
        finish = targets.copy_back if targets.flat is not None else None
        return self._collective(
            opts, mine, list(outputs), ALL_TO_ALL, sources.address, targets.address, 0, dtype, counts=counts,
            finish=finish, held=[list(inputs), sources.flat, targets.flat],
        )  # fmt: skip

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, root: int = 0, timeout: Any = None) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = ([outputs] if outputs else []), [inputs]
        root = opts if isinstance(opts, int) else root
        opts = options_of(c10d.GatherOptions, opts, timeout, rootRank=root)
        root, input = opts.rootRank, _only(inputs, "gather")
        self._check_root(root, "gather")
        if root != self._rank:
            source = to_send(input, "gather")
            dtype, multiplier = MOVED[source.dtype]
            count = source.numel() * multiplier
            return self._collective(
                opts, source, [], GATHER, source.data_ptr(), 0, count, dtype, root=root, counts=_OF_THE_ROOT, held=input
            )  # fmt: skip
        targets = _only(outputs, "gather")
        dtype, multiplier = MOVED[input.dtype]
        row = self._row(targets, input, multiplier, "gather", targets)
        source = to_send(input, "gather")
        own = targets[root].data_ptr() == source.data_ptr()
        others = [tensor for number, tensor in enumerate(targets) if not own or number != root]
        self._choose_buffer(row, not share_memory([source], others), unit_bytes(input, multiplier), False)
        finish = row.copy_back if row.flat is not None else None
        return self._collective(
            opts, source, list(targets), GATHER, source.data_ptr(), row.address, source.numel() * multiplier, dtype,
            root=root, counts=(None, row.counts, None, row.displacements), finish=finish,
            held=[input, source, row.flat],
        )  # fmt: skip

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, root: int = 0, timeout: Any = None) -> Any:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], ([inputs] if inputs else [])
        root = opts if isinstance(opts, int) else root
        opts = options_of(c10d.ScatterOptions, opts, timeout, rootRank=root)
        root, output = opts.rootRank, _only(outputs, "scatter")
        self._check_root(root, "scatter")
        if root != self._rank:
            buffer, finish = to_receive(output, "scatter")
            dtype, multiplier = MOVED[output.dtype]
            count = buffer.numel() * multiplier
            return self._collective(
                opts, buffer, [output], SCATTER, 0, buffer.data_ptr(), count, dtype, root=root, counts=_OF_THE_ROOT,
                finish=finish,
            )  # fmt: skip
        buffer, finish = to_receive(output, "scatter")
        dtype, multiplier = MOVED[output.dtype]
        try:
            sources = _only(inputs, "scatter")
            row = self._row(sources, output, multiplier, "scatter", [output])
        except Error:
            self._send_nothing(opts, root)
            raise
        own = sources[root].data_ptr() == buffer.data_ptr()
        others = [tensor for number, tensor in enumerate(sources) if not own or number != root]
        self._choose_buffer(row, not share_memory([buffer], others), unit_bytes(output, multiplier), True)
        return self._collective(
            opts, buffer, [output], SCATTER, row.address, buffer.data_ptr(), buffer.numel() * multiplier, dtype,
            root=root, counts=(row.counts, None, row.displacements, None), finish=finish,
            held=[list(sources), row.flat],
        )  # fmt: skip

    def _send_nothing(self, opts: Any, root: int) -> None:
        """Called on the root of a scatter if its list of tensors is wrong: sends 0 elements to each rank. The ranks
        that expect some elements get an error, and do not wait for their timeout. Not called if the root's output is
        wrong, because the other ranks then probably have wrong outputs, too, and have refused the call."""
        if self._open_batch() is not None:
            return
        counts = ([0] * self._size, None, None, None)
        with contextlib.suppress(Error):  # the caller gets the error about its list
            self._collective(opts, torch.empty(0), [], SCATTER, 0, 0, 0, UINT8, root=root, counts=counts)

    def _check_root(self, root: int, call: str) -> None:
        if not 0 <= root < self._size:
            raise invalid(f"{call}: root {root} is outside 0..{self._size - 1}")
