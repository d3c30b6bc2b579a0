"""Communicator: one rank's membership in a group of ranks that call collectives together.

Every rank calls the same collectives in the same order, with the same lengths, dtype, operation and algorithm. Ranks
that disagree get MismatchError, ranks that are late or dead are named. Options that the calls share:

    dtype      what the elements are, where the array does not say so: "bfloat16" in an array of uint16
    algorithm  "ring", "direct", ...: docs/collectives.md; the same on all ranks
    timeout    seconds that the call may make no progress; None: the communicator's
    stream     of calls on GPU memory: a CUstream as a number, or what PyTorch or CuPy call a stream
    group      a tutti.Group that takes the call; nothing happens before the group runs
    blocking   False: the call returns a tutti.Work at once, and the arrays belong to the operation until it has ended
    scale      the factor of op "premulsum"

Every function raises InvalidArgumentError for arrays that cannot be used (see tutti.arrays), before anything is sent,
and the other errors of tutti.errors. Every function may be called from any thread. A call that blocks lets other
threads of Python run; Ctrl-C ends it in the main thread, by abort().
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

import numpy

from . import _core
from .arrays import type_name
from .call import CallOptions, Counts, barrier, collective, milliseconds, read, transfer
from .errors import InvalidArgumentError
from .unique_id import UniqueId

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ALL_REDUCE = _core.collectives["all_reduce"]
_BROADCAST = _core.collectives["broadcast"]
_REDUCE_SCATTER = _core.collectives["reduce_scatter"]
_ALL_GATHER = _core.collectives["all_gather"]
_ALL_TO_ALL = _core.collectives["all_to_all"]
# Those whose result follows from the numbers alone; premulsum has a scale.
_PLAIN_OPS = {name: number for name, number in _core.reduce_ops.items() if name != "premulsum"}


class Communicator:
    """See the module. Its membership ends when it is dropped; in peace by finalize(), which `with` does at its end."""

    def __init__(
        self,
        *,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        root: str = "",
        job_id: str = "",
        job_key_file: str = "",
        interface: str = "",
        unique_id: Optional[UniqueId] = None,
        transport: str = "",
        attach: str = "",
        encrypt: Optional[bool] = None,
        node_id: str = "",
        device: Optional[int] = None,
        device_calls: str = "",
        uniform: Optional[bool] = None,
        checksum: Optional[bool] = None,
        setup_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
    ):
        """Joins the job as one rank; blocks until all ranks have joined.

        What is left out comes from the environment, as `tutti run`, torchrun, mpirun and srun set it. The options are
        those of include/tutti/communicator.h, times in seconds (60 s unless set). Raises ConfigError,
        InvalidArgumentError, DeadlineError (naming the missing), RefusedError, SystemCallError.
        """
        self._take(
            _core.Communicator.create(
                rank=-1 if rank is None else rank,
                size=-1 if size is None else size,
                root=root,
                job_id=job_id,
                job_key_file=job_key_file,
                interface=interface,
                unique_id=None if unique_id is None else unique_id.bytes,
                transport=transport,
                attach=attach,
                encrypt=encrypt,
                node_id=node_id,
                device=device,
                device_calls=device_calls,
                uniform=uniform,
                checksum=checksum,
                setup_timeout_ms=milliseconds(setup_timeout, "setup_timeout"),
                timeout_ms=milliseconds(timeout, "timeout"),
            )
        )

    @staticmethod
    def create_all(
        size: int,
        *,
        transport: str = "",
        nodes: int = 1,
        setup_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
    ) -> "List[Communicator]":
        """All ranks of a job in this process, for one thread each: element i is rank i. size 1 .. 1024.

        nodes: as if on so many machines, 1 .. size.
        """
        made = _core.Communicator.create_all(
            size,
            transport=transport,
            nodes=nodes,
            setup_timeout_ms=milliseconds(setup_timeout, "setup_timeout"),
            timeout_ms=milliseconds(timeout, "timeout"),
        )
        return [_wrap(core) for core in made]

    def _take(self, core: _core.Communicator) -> None:
        self._core = core
        self._quick = core.quick
        self.rank: int = core.rank
        self.size: int = core.size

    @property
    def core(self) -> _core.Communicator:
        """The same membership on addresses, for those who build on tutti._core."""
        return self._core

    @property
    def nodes(self) -> int:
        """Machines that the ranks are on."""
        return self._core.nodes

    @property
    def transport(self) -> str:
        """How this rank reaches the others: "shm", "tcp" or "mixed"."""
        return self._core.transport

    @property
    def runs_on_devices(self) -> bool:
        """Whether calls on GPU memory run on the GPUs; else the host carries them out."""
        return self._core.runs_on_devices

    def __repr__(self) -> str:
        if not hasattr(self, "_core"):
            return "<tutti.Communicator that was not made>"
        return f"<tutti.Communicator rank {self.rank} of {self.size}, {self.transport}>"

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: Optional[type], *_: Any) -> None:
        if kind is None:
            self.finalize()
        else:
            self.abort()

    # ---- collectives: docs/collectives.md says what goes in and comes out. `out` None: in place, where the two have
    # one length, else a new NumPy array; the function returns where the result is, and None on ranks that get none.

    def all_reduce(self, x: Any, out: Any = None, op: str = "sum", **options: Unpack[CallOptions]) -> Any:
        """out[i] = op over all ranks' x[i]. op: sum, prod, max, min, avg, premulsum (each rank's x times its `scale`,
        then summed), bit_and, bit_or, bit_xor."""
        if not options and self._quick(_ALL_REDUCE, x, out, _PLAIN_OPS.get(op, -1), 0):
            return x if out is None else out
        return collective(self, "all_reduce", x, x if out is None else out, read(options), op=op)

    def broadcast(self, x: Any, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """x becomes the root's x."""
        if not options and self._quick(_BROADCAST, x, None, 0, root):
            return x
        if self.rank == root:
            return collective(self, "broadcast", x, None, read(options), root=root, result=x)
        return collective(self, "broadcast", None, x, read(options), root=root)

    def reduce(self, x: Any, out: Any = None, op: str = "sum", root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """all_reduce() whose result only the root gets, in its `out` or x; others' x stays as it is."""
        to = None if self.rank != root else x if out is None else out
        return collective(self, "reduce", x, to, read(options), op=op, root=root)

    def all_gather(self, x: Any, out: Any = None, **options: Unpack[CallOptions]) -> Any:
        """out: the ranks' x one after the other; a new one has the shape (size, *x.shape). In place: x is rank's part
        of out."""
        if not options and out is not None and self._quick(_ALL_GATHER, x, out, 0, 0):
            return out
        return collective(self, "all_gather", x, out, read(options), new_shape=lambda: (self.size, *x.shape))

    def reduce_scatter(self, x: Any, out: Any = None, op: str = "sum", **options: Unpack[CallOptions]) -> Any:
        """out of rank r: the r-th of `size` equal parts of the reduction of all x. A new one has x's shape, its first
        length divided by size. In place: out is rank's part of x."""
        if not options and out is not None and self._quick(_REDUCE_SCATTER, x, out, _PLAIN_OPS.get(op, -1), 0):
            return out
        return collective(self, "reduce_scatter", x, out, read(options), op=op, new_shape=lambda: self._part_of(x))

    def all_to_all(self, x: Any, out: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Part q of out = part `rank` of rank q's x, of `size` equal parts. Without `out` in place."""
        if not options and self._quick(_ALL_TO_ALL, x, out, 0, 0):
            return x if out is None else out
        return collective(self, "all_to_all", x, x if out is None else out, read(options))

    def gather(self, x: Any, out: Any = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """The root's out: the ranks' x one after the other; a new one has the shape (size, *x.shape). In place: x is
        the root's part of its out."""
        if self.rank != root:
            return collective(self, "gather", x, None, read(options), root=root)
        return collective(self, "gather", x, out, read(options), root=root, new_shape=lambda: (self.size, *x.shape))

    def scatter(self, x: Any, out: Any = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """out of rank r: the r-th of `size` equal parts of the root's x (None elsewhere). The root may leave `out` out:
        a new one has x's shape, its first length divided by size. In place: the root's out is its part of x."""
        if self.rank != root:
            return collective(self, "scatter", None, out, read(options), root=root)
        return collective(self, "scatter", x, out, read(options), root=root, new_shape=lambda: self._part_of(x))

    def barrier(self, **options: Unpack[CallOptions]) -> Any:
        """Returns when every rank has called it."""
        return barrier(self, read(options)) if options else self._core.barrier()

    # ---- v-variants. Counts and displacements are in elements, by rank; without displacements one part follows the
    # other.

    def all_gather_v(
        self,
        x: Any,
        out: Any,
        counts: Sequence[int],
        displacements: Optional[Sequence[int]] = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Part q of out, counts[q] long, = x of rank q. All ranks give the same counts."""
        return collective(self, "all_gather", x, out, read(options), parts_out=Counts(counts, displacements))

    def reduce_scatter_v(
        self,
        x: Any,
        out: Any,
        counts: Sequence[int],
        displacements: Optional[Sequence[int]] = None,
        op: str = "sum",
        **options: Unpack[CallOptions],
    ) -> Any:
        """out of rank r = part r, counts[r] long, of the reduction of all x. All ranks give the same counts."""
        return collective(self, "reduce_scatter", x, out, read(options), op=op, parts_in=Counts(counts, displacements))

    def all_to_all_v(
        self,
        x: Any,
        input_counts: Sequence[int],
        out: Any,
        output_counts: Sequence[int],
        input_displacements: Optional[Sequence[int]] = None,
        output_displacements: Optional[Sequence[int]] = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Part q of out, output_counts[q] long, = part `rank` of rank q's x. What r sends to q is what q receives
        from r."""
        return collective(
            self,
            "all_to_all",
            x,
            out,
            read(options),
            parts_in=Counts(input_counts, input_displacements),
            parts_out=Counts(output_counts, output_displacements),
        )

    def gather_v(
        self,
        x: Any,
        out: Any = None,
        counts: Optional[Sequence[int]] = None,
        displacements: Optional[Sequence[int]] = None,
        root: int = 0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Part q of the root's out, counts[q] long, = x of rank q. Others leave out and counts out."""
        if self.rank != root:
            return collective(self, "gather", x, None, read(options), root=root, variable=True)
        return collective(self, "gather", x, out, read(options), root=root, parts_out=Counts(counts, displacements))

    def scatter_v(
        self,
        x: Any,
        counts: Optional[Sequence[int]],
        out: Any,
        displacements: Optional[Sequence[int]] = None,
        root: int = 0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """out of rank r = part r, counts[r] long, of the root's x. Others give None for x and counts."""
        if self.rank != root:
            return collective(self, "scatter", None, out, read(options), root=root, variable=True)
        return collective(self, "scatter", x, out, read(options), root=root, parts_in=Counts(counts, displacements))

    # ---- point to point

    def send(self, x: Any, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Sends x to rank `peer`: returns when x may be written to again. In a group also to this rank itself."""
        return transfer(self, "send", x, peer, read(options))

    def receive(self, x: Any, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Receives x from rank `peer`, whose array has the same length and dtype. The k-th receive meets the k-th
        send."""
        return transfer(self, "receive", x, peer, read(options))

    def next_sender(self, timeout: Optional[float] = None) -> int:
        """Waits until somebody has sent something that no receive was called for, and returns that rank: its next
        message stays for receive(). Peers take turns. Receives that this rank calls while it waits have the messages
        before that one."""
        return self._core.next_sender(milliseconds(timeout, "timeout"))

    # ---- membership: include/tutti/communicator.h has the whole story of each

    def split(self, colour: Optional[int], key: int = 0) -> "Optional[Communicator]":
        """The ranks that give the same colour (>= 0) form a new communicator, in the order of key, then rank; None
        for those whose colour is None. Collective."""
        core = self._core.split(-1 if colour is None else _colour(colour), key)
        return None if core is None else _wrap(core)

    def duplicate(self) -> "Communicator":
        """A new communicator of the same ranks. Collective."""
        return _wrap(self._core.duplicate())

    def shrink(self, excluded: Optional[Sequence[int]] = None) -> "Communicator":
        """A new communicator without the ranks in `excluded`, or without those that have died. Called by all that
        live, in whatever state this one is."""
        return _wrap(self._core.shrink(None if excluded is None else list(excluded)))

    def agree(self, value: int = 2**63 - 1, patience: Optional[float] = None) -> _core.Agreement:
        """Finds out together with all ranks that live: .survivors, .last_operation (the last collective that ended well
        everywhere), .value (the least that a survivor gave)."""
        return self._core.agree(value, milliseconds(patience, "patience"))

    def grow(self, size: int, unique_id: Optional[UniqueId] = None) -> "Communicator":
        """A new communicator of `size` ranks: these, and newcomers, who join by the unique id that one of these gives.
        Collective."""
        return _wrap(self._core.grow(size, None if unique_id is None else unique_id.bytes))

    def finalize(self) -> None:
        """Waits for what is under way here, then ends the membership: later calls are refused."""
        self._core.finalize()

    def abort(self) -> None:
        """Ends every call under way, here and on the peers, with AbortedError. From any thread, in any state."""
        self._core.abort()

    # ---- memory

    def allocate(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> "numpy.ndarray[Any, Any]":
        """New zeroed memory that the ranks of this machine reach in place (collectives on it need no copy), as a
        NumPy array. It is given back when the last array on it is gone. dtype: NumPy's, bfloat16 and float8 by
        ml_dtypes' types."""
        found = numpy.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if found.hasobject:
            raise InvalidArgumentError(f"memory of dtype {found} would hold Python objects: take a dtype of numbers")
        elements = int(numpy.prod(shape, dtype=numpy.int64))
        if elements <= 0 or min(shape, default=1) < 0:
            raise InvalidArgumentError(f"an array of shape {shape} has no elements: nothing to allocate")
        memory = self._core.allocate(elements * found.itemsize)
        whole = numpy.frombuffer(memoryview(memory), numpy.uint8, elements * found.itemsize)
        array: "numpy.ndarray[Any, Any]" = whole.view(found).reshape(shape)
        return array

    def auto_algorithm(self, kind: str, count: int, dtype: Any) -> str:
        """The algorithm that a call of `count` elements per block takes where none is given."""
        number = self._core.auto_algorithm(_kind(kind), count, _core.data_types[type_name(dtype)])
        return next(name for name, value in _core.algorithms.items() if value == number)

    def predicted_us(self, kind: str, count: int, dtype: Any) -> Optional[float]:
        """What the cost model says that such a call takes on host memory, in microseconds; None where it cannot say."""
        return self._core.predicted_us(_kind(kind), count, _core.data_types[type_name(dtype)])

    def async_status(self) -> None:
        """Raises the first error, since this was last asked, of a call on GPU memory that failed after it had
        returned."""
        self._core.async_status()

    def _part_of(self, x: Any) -> Tuple[int, ...]:
        if len(x.shape) == 0 or x.shape[0] % self.size != 0:
            raise InvalidArgumentError(
                f"the input, of shape {x.shape}, cannot be cut into {self.size} equal parts along its "
                "first dimension: give an output"
            )
        return (x.shape[0] // self.size, *x.shape[1:])


def _wrap(core: _core.Communicator) -> Communicator:
    communicator = Communicator.__new__(Communicator)
    communicator._take(core)
    return communicator


def _kind(name: str) -> int:
    if name not in _core.collectives:
        raise InvalidArgumentError(f"there is no collective {name!r}: take one of {', '.join(_core.collectives)}")
    return _core.collectives[name]


def _colour(colour: int) -> int:
    if colour < 0:
        raise InvalidArgumentError(f"colour is {colour}: 0 or more, or None for no communicator")
    return colour
