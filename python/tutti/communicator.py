"""Communicator: one rank's membership in a group of ranks that call collectives together.

Every rank calls the same collectives in the same order, with the same lengths, dtype, operation and algorithm. Ranks
that disagree get MismatchError. If ranks are late or dead, the error names them. Options of collectives, sends and
receives:

    dtype      type of the elements, if it differs from the array's type: "bfloat16" for an array of uint16
    algorithm  "ring", "direct", ...: see docs/collectives.md; the same on all ranks
    timeout    seconds without progress after which the call fails; None: the communicator's timeout
    stream     for calls on GPU memory: a CUstream as a number, or a stream of PyTorch or CuPy
    group      a tutti.Group to which the call is added; it starts when the group runs
    blocking   False: the call returns a tutti.Work at once, and the arrays belong to the operation until it has ended
    scale      the factor by which op "premulsum" multiplies this rank's input
    uniform    True: a blocking collective on host memory has the same outcome on all live ranks. The communicator must
               have been created with uniform="calls" or uniform=True (all such calls). The same on all ranks
    checksum   True: every message of a blocking collective on host memory carries a checksum. The same on all ranks

Every function raises InvalidArgumentError for arrays that cannot be used (see tutti.arrays), before anything is sent,
and the other errors of tutti.errors. Every function may be called from any thread. A blocking call lets other Python
threads run. In the main thread Ctrl-C ends it with abort(), if SIGINT has Python's own handler. Exceptions: Ctrl-C does
not end shrink(), agree() and create_all(), and it ends the constructor without abort().
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

import numpy

from . import _core
from .arrays import type_name
from .call import CallOptions, Counts, barrier, collective, milliseconds, read, transfer, uniform_calls
from .errors import InvalidArgumentError
from .unique_id import UniqueId

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ALL_REDUCE = _core.collectives["all_reduce"]
_BROADCAST = _core.collectives["broadcast"]
_REDUCE_SCATTER = _core.collectives["reduce_scatter"]
_ALL_GATHER = _core.collectives["all_gather"]
_ALL_TO_ALL = _core.collectives["all_to_all"]
# The operations for which _quick() can be used. It has no argument for the scale of premulsum.
_PLAIN_OPS = {name: number for name, number in _core.reduce_ops.items() if name != "premulsum"}


class Communicator:
    """See the description of the module. The rank leaves the communicator when this object, and all works, groups and
    memory that use it, are destroyed. finalize() first waits for operations in progress. A `with` statement calls
    finalize() at its end, or abort() after an exception."""

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
        uniform: Union[bool, str, None] = None,
        checksum: Optional[bool] = None,
        setup_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
    ):
        """Joins the job as one rank. Blocks until all ranks have joined.

        Arguments that are not passed are taken from the environment, as `tutti run`, torchrun, mpirun and srun set it.
        include/tutti/communicator.h describes the options. Timeouts are in seconds, and 60 s by default (or as
        TUTTI_SETUP_TIMEOUT_MS and TUTTI_TIMEOUT_MS). Raises ConfigError, InvalidArgumentError, MismatchError,
        UnsupportedError, DeadlineError (names the missing ranks), RefusedError, PeerLostError, DeviceError,
        SystemCallError.
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
                uniform=uniform_calls(uniform),
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
        """Creates all ranks of a job in this process, usually for one thread each. Element i of the list is rank i.

        size: the number of ranks, 1 .. 1024. nodes: the number of machines on which the ranks are treated as running,
        1 .. size.
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
        """The underlying object of tutti._core, whose functions take addresses."""
        return self._core

    @property
    def nodes(self) -> int:
        """Number of machines on which the ranks run."""
        return self._core.nodes

    @property
    def transport(self) -> str:
        """How this rank reaches the other ranks: "shm", "tcp", "mixed" (both), "verbs", "ucx", "shm+verbs" or
        "shm+ucx"."""
        return self._core.transport

    @property
    def runs_on_devices(self) -> bool:
        """Whether calls on GPU memory run on the GPUs; otherwise they run on the host."""
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

    # ---- collectives: docs/collectives.md describes inputs and outputs. If `out` is None, all_reduce, reduce and
    # all_to_all are in place, and the output of the others is a new NumPy array (broadcast has no `out`). The functions
    # return the array with the result, or None on ranks without a result; with blocking=False they return a tutti.Work.

    def all_reduce(self, x: Any, out: Any = None, op: str = "sum", **options: Unpack[CallOptions]) -> Any:
        """out[i] = op over all ranks' x[i]. op: sum, prod, max, min, avg, premulsum (each rank's x times its `scale`,
        then summed), bit_and, bit_or, bit_xor."""
        if not options and self._quick(_ALL_REDUCE, x, out, _PLAIN_OPS.get(op, -1), 0):
            return x if out is None else out
        return collective(self, "all_reduce", x, x if out is None else out, read(options), op=op)

    def broadcast(self, x: Any, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Copies the root's x to the x of every other rank. Returns x."""
        if not options and self._quick(_BROADCAST, x, None, 0, root):
            return x
        if self.rank == root:
            return collective(self, "broadcast", x, None, read(options), root=root, result=x)
        return collective(self, "broadcast", None, x, read(options), root=root)

    def reduce(self, x: Any, out: Any = None, op: str = "sum", root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Like all_reduce(), but only the root gets the result: in its `out` or, if that is None, in x. The x of other
        ranks does not change."""
        to = None if self.rank != root else x if out is None else out
        return collective(self, "reduce", x, to, read(options), op=op, root=root)

    def all_gather(self, x: Any, out: Any = None, **options: Unpack[CallOptions]) -> Any:
        """out = the x of all ranks, in the order of the ranks. If `out` is None, it is a new array of the shape (size,
        *x.shape). In place: x is part r of out, if r is this rank."""
        if not options and out is not None and self._quick(_ALL_GATHER, x, out, 0, 0):
            return out
        return collective(self, "all_gather", x, out, read(options), new_shape=lambda: (self.size, *x.shape))

    def reduce_scatter(self, x: Any, out: Any = None, op: str = "sum", **options: Unpack[CallOptions]) -> Any:
        """out of rank r = the r-th of `size` equal parts of the reduction of all x. If `out` is None, it is a new array
        with the shape of x, with the first dimension divided by size. In place: out is part r of x on rank r."""
        if not options and out is not None and self._quick(_REDUCE_SCATTER, x, out, _PLAIN_OPS.get(op, -1), 0):
            return out
        return collective(self, "reduce_scatter", x, out, read(options), op=op, new_shape=lambda: self._part_of(x))

    def all_to_all(self, x: Any, out: Any = None, **options: Unpack[CallOptions]) -> Any:
        """x and out consist of `size` equal parts. Part q of this rank's out = part r of rank q's x, if r is this rank.
        In place if `out` is None."""
        if not options and self._quick(_ALL_TO_ALL, x, out, 0, 0):
            return x if out is None else out
        return collective(self, "all_to_all", x, x if out is None else out, read(options))

    def gather(self, x: Any, out: Any = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """The root's out = the x of all ranks, in the order of the ranks. If the root's `out` is None, it is a new
        array of the shape (size, *x.shape). In place: the root's x is its own part of out."""
        if self.rank != root:
            return collective(self, "gather", x, None, read(options), root=root)
        return collective(self, "gather", x, out, read(options), root=root, new_shape=lambda: (self.size, *x.shape))

    def scatter(self, x: Any, out: Any = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """out of rank r = the r-th of `size` equal parts of the root's x. Ranks other than the root pass None for x.
        Only the root may omit `out`: it gets a new array with the shape of x, with the first dimension divided by size.
        In place: the root's out is its own part of x."""
        if self.rank != root:
            return collective(self, "scatter", None, out, read(options), root=root)
        return collective(self, "scatter", x, out, read(options), root=root, new_shape=lambda: self._part_of(x))

    def barrier(self, **options: Unpack[CallOptions]) -> Any:
        """Returns when every rank has called it."""
        return barrier(self, read(options)) if options else self._core.barrier()

    # ---- v-variants: collectives whose parts have different lengths. counts[q] is the length of the part of rank q,
    # and displacements[q] its offset in the array, both in elements. Without displacements the parts are contiguous.

    def all_gather_v(
        self,
        x: Any,
        out: Any,
        counts: Sequence[int],
        displacements: Optional[Sequence[int]] = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Part q of out (counts[q] elements) = x of rank q. All ranks pass the same counts."""
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
        """out of rank r = part r (counts[r] elements) of the reduction of all x. All ranks pass the same counts."""
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
        """Part q of this rank's out (output_counts[q] elements) = part r of rank q's x, if r is this rank. For every
        pair of ranks, input_counts[q] on rank r must be equal to output_counts[r] on rank q."""
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
        """Part q of the root's out (counts[q] elements) = x of rank q. Only the root passes `out` and counts."""
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
        """out of rank r = part r (counts[r] elements) of the root's x. Ranks other than the root pass None for x and
        for counts."""
        if self.rank != root:
            return collective(self, "scatter", None, out, read(options), root=root, variable=True)
        return collective(self, "scatter", x, out, read(options), root=root, parts_in=Counts(counts, displacements))

    # ---- point to point

    def send(self, x: Any, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Sends x to rank `peer`. Returns when x may be modified again. In a group, `peer` may be this rank itself."""
        return transfer(self, "send", x, peer, read(options))

    def receive(self, x: Any, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Receives a message from rank `peer` into x, which must have the length and dtype of the array that was sent.
        The k-th receive from a peer gets the peer's k-th send to this rank. In a group, `peer` may be this rank
        itself."""
        return transfer(self, "receive", x, peer, read(options))

    def next_sender(self, timeout: Optional[float] = None) -> int:
        """Waits until a message has arrived for which this rank has not called receive() yet, and returns its sender.
        The message stays; the next receive() from that rank gets it. If messages of several peers have arrived,
        successive calls return the peers in turn. Receives that other threads of this rank call during the wait get the
        messages first. timeout: seconds; None: the communicator's timeout."""
        return self._core.next_sender(milliseconds(timeout, "timeout"))

    # ---- membership: include/tutti/communicator.h has the complete descriptions

    def split(self, colour: Optional[int], key: int = 0) -> "Optional[Communicator]":
        """The ranks that pass the same colour (>= 0) form a new communicator, ordered by key and then by rank. A rank
        that passes None gets None. Collective."""
        core = self._core.split(-1 if colour is None else _colour(colour), key)
        return None if core is None else _wrap(core)

    def duplicate(self) -> "Communicator":
        """Creates a communicator with the same ranks. Collective."""
        return _wrap(self._core.duplicate())

    def shrink(self, excluded: Optional[Sequence[int]] = None) -> "Communicator":
        """Creates a communicator without the ranks in `excluded` or, if that is None, without the ranks whose processes
        have ended or that do not call shrink() in time. All remaining ranks call shrink(). This communicator may be in
        any state."""
        return _wrap(self._core.shrink(None if excluded is None else list(excluded)))

    def agree(self, value: int = 2**63 - 1, timeout: Optional[float] = None) -> _core.Agreement:
        """Agrees with all live ranks on .survivors, .last_operation (the last collective that completed on every
        survivor) and .value (the minimum of the survivors' values). timeout: seconds to wait for live ranks that do
        not call agree(); None: the set-up timeout."""
        return self._core.agree(value, milliseconds(timeout, "timeout"))

    def grow(self, size: int, unique_id: Optional[UniqueId] = None) -> "Communicator":
        """Creates a communicator of `size` ranks: the present ranks, and new ones, which join with a unique id. Exactly
        one of the present ranks passes that id. Collective."""
        return _wrap(self._core.grow(size, None if unique_id is None else unique_id.bytes))

    def finalize(self) -> None:
        """Waits for this rank's operations in progress, then leaves the communicator. Later calls on it are refused."""
        self._core.finalize()

    def abort(self) -> None:
        """Ends every call in progress, on this rank and on its peers, with AbortedError, and makes the communicator
        unusable. Does not end shrink() and agree(). May be called from any thread, in any state."""
        self._core.abort()

    # ---- memory

    def allocate(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> "numpy.ndarray[Any, Any]":
        """Allocates zeroed memory that the ranks of this machine can access directly, so that collectives on it avoid a
        copy. Returns a NumPy array. The memory is freed with the last array that uses it. dtype: a NumPy dtype; for
        bfloat16 and float8 those of ml_dtypes."""
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
        """Returns the algorithm that Tutti selects for a call of the collective `kind` on host memory with `count`
        elements per block."""
        number = self._core.auto_algorithm(_kind(kind), count, _core.data_types[type_name(dtype)])
        return next(name for name, value in _core.algorithms.items() if value == number)

    def predicted_us(self, kind: str, count: int, dtype: Any) -> Optional[float]:
        """Returns the time in microseconds that a call of the collective `kind` with `count` elements per block takes
        on host memory according to the cost model, or None if the model does not apply."""
        return self._core.predicted_us(_kind(kind), count, _core.data_types[type_name(dtype)])

    def async_status(self) -> None:
        """Raises, and clears, the first error of a call on GPU memory that failed after the call had returned. An error
        that has broken the communicator may be raised again."""
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
