"""Turns the arrays and options of a call into one call of tutti._core. The lengths of the arrays are checked here,
before anything is sent."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, SupportsIndex, Tuple, TypedDict, Union

from . import _core
from .arrays import Array, to_array, moved, new_like, reduced, same_kind, writable
from .errors import InvalidArgumentError
from .group import Group, Work


class Buffers(NamedTuple):
    """The properties of a collective's buffers, from its row in the table of include/tutti/collectives.h."""

    reduces: bool
    blocks_in: bool  # the input contains one block for each rank
    blocks_out: bool  # the output contains one block for each rank
    root_in: bool  # only the root has an input
    root_out: bool  # only the root has an output


_BUFFERS = {name: Buffers(*row) for name, row in _core.collective_buffers.items()}


class CallOptions(TypedDict, total=False):
    """The keyword arguments of collectives, sends and receives. tutti/communicator.py describes them."""

    dtype: Any
    algorithm: Optional[str]
    timeout: Optional[float]
    stream: Any
    group: Optional[Group]
    blocking: bool
    scale: Union[int, float, None]
    uniform: bool
    checksum: bool


class Options(NamedTuple):
    """The options of a call as in CallOptions; those that were not given have their default values."""

    dtype: Any = None
    algorithm: Optional[str] = None
    timeout: Optional[float] = None
    stream: Any = None
    group: Optional[Group] = None
    blocking: bool = True
    scale: Union[int, float, None] = None
    uniform: bool = False
    checksum: bool = False


def read(options: CallOptions) -> Options:
    """Returns the options with defaults for those that are not given. Raises TypeError for an unknown option."""
    unknown = [name for name in options if name not in Options._fields]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}: take {', '.join(Options._fields)}")
    return Options(**options)


class Counts(NamedTuple):
    """For a v-variant: the lengths of the parts of an array, and their offsets, both in elements and indexed by rank.
    No displacements: the parts are contiguous."""

    counts: Optional[Sequence[int]]
    displacements: Optional[Sequence[int]] = None


def milliseconds(seconds: Optional[float], what: str) -> int:
    """Converts seconds to milliseconds, rounded up; 0 (the default) for None. Raises InvalidArgumentError if the value
    is not a positive number below 1e9. `what` is its name in the message."""
    if seconds is None:
        return 0
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise InvalidArgumentError(f"{what} is {seconds!r}: give seconds, more than 0 (None: the default)")
    return math.ceil(seconds * 1000)


def uniform_calls(value: Union[bool, str, None]) -> Optional[int]:
    """Returns the number of _core for the `uniform` of a communicator: False, "calls", True or None."""
    if value is None or isinstance(value, bool):
        return None if value is None else 2 * value
    if value != "calls":
        raise InvalidArgumentError(f'uniform is {value!r}: give True, False or "calls"')
    return 1


def stream_number(stream: Any) -> Optional[int]:
    """Returns a CUstream as an integer. `stream` is a stream of PyTorch, CuPy or cuda-python, or already an integer;
    None gives None."""
    if stream is None or isinstance(stream, int):
        return stream
    face = getattr(stream, "__cuda_stream__", None)
    if face is not None:
        return int((face() if callable(face) else face)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise InvalidArgumentError(
        f"stream is of type {type(stream).__name__}: give a CUstream as a number, or a stream of PyTorch or CuPy"
    )


def collective(
    comm: Any,
    kind: str,
    x: Any,
    out: Any,
    options: Options,
    *,
    op: str = "sum",
    root: int = 0,
    result: Any = None,
    new_shape: Optional[Callable[[], Tuple[int, ...]]] = None,
    variable: bool = False,
    parts_in: Optional[Counts] = None,
    parts_out: Optional[Counts] = None,
) -> Any:
    """Makes one collective call: runs it, starts it, or adds it to options.group. Returns the output, `result`, or a
    Work.

    x: the input, or None if this rank has none. out: the output. If out is None and new_shape is given, a new array of
    the shape new_shape() becomes the output; if new_shape is None, this rank has no output. result: the return value if
    there is no output. variable: the call is a v-variant, even if this rank has no counts. parts_in, parts_out: the
    parts of the input and of the output of a v-variant; None: that array is one block.
    """
    if not isinstance(root, SupportsIndex):
        raise InvalidArgumentError(f"root {root!r} is no rank: give a whole number, 0..{comm.size - 1}")
    root = root.__index__()
    if not 0 <= root < comm.size:
        raise InvalidArgumentError(f"root {root} is outside 0..{comm.size - 1}")
    source = None if x is None else to_array(x, "the input", options.dtype)
    if out is None and new_shape is not None and x is not None:
        out = new_like(x, _shape(x, new_shape), "the output")
    target = None
    if out is not None:
        target = writable(
            source if source is not None and out is x else to_array(out, "the output", options.dtype), "the output"
        )
    _require_both(comm, kind, root, source, target)
    if source is not None and target is not None:
        same_kind(source, target)
    array = source if source is not None else target
    assert array is not None
    reduces = _BUFFERS[kind].reduces
    elements = reduced(array, op) if reduces else moved(array)
    if (options.scale is not None) != (reduces and op == "premulsum"):
        raise InvalidArgumentError("scale is what op='premulsum' multiplies by: give both or neither")
    if variable or parts_in is not None or parts_out is not None:
        count, blocks = _parts(comm, kind, elements.factor, source, target, parts_in, parts_out)
    else:
        count, blocks = _block(comm.size, kind, source, target) * elements.factor, (None,) * 4
    # The root of a broadcast passes a single array, which is both its input and its output.
    to = source if kind == "broadcast" and target is None else target
    arguments = (
        _core.collectives[kind],
        0 if source is None else source.address,
        0 if to is None else to.address,
        count,
        elements.dtype,
        elements.op,
        root,
        _algorithm(options.algorithm),
        milliseconds(options.timeout, "timeout"),
        options.scale,
        _stream(options.stream, array),
        *blocks,
        elements.reduction,
    )
    return _launch(comm, arguments, options, out if out is not None else result, (source, target))


def barrier(comm: Any, options: Options) -> Any:
    """Makes a barrier with options: runs it, starts it, or adds it to options.group."""
    arguments = (
        _core.collectives["barrier"],
        0,
        0,
        0,
        0,
        0,
        0,
        _algorithm(options.algorithm),
        milliseconds(options.timeout, "timeout"),
    )
    return _launch(comm, arguments, options, None, None)


def _launch(comm: Any, arguments: Tuple[Any, ...], options: Options, outcome: Any, keep: Any) -> Any:
    special = {"uniform": options.uniform, "checksum": options.checksum}
    if options.group is not None:
        options.group._core.add(comm._core, *arguments, **special)
        return options.group._added(outcome, keep)
    if not options.blocking:
        return Work(comm._core.start(*arguments, **special), outcome, keep)
    comm._core.run(*arguments, **special)
    return outcome


def transfer(comm: Any, direction: str, x: Any, peer: int, options: Options) -> Any:
    """Makes one send or receive: runs it, starts it, or adds it to options.group. `direction` is "send" or "receive".
    Returns x, or a Work."""
    what = "the array to send" if direction == "send" else "the array to receive"
    array = to_array(x, what, options.dtype)
    if direction == "receive":
        writable(array, what)
    elements = moved(array)
    if options.uniform or options.checksum:
        raise InvalidArgumentError("uniform and checksum are options of blocking collectives only")
    arguments = (
        array.address,
        array.elements * elements.factor,
        elements.dtype,
        peer,
        milliseconds(options.timeout, "timeout"),
        _stream(options.stream, array),
    )
    if options.group is not None:
        getattr(options.group._core, direction)(comm._core, *arguments)
        return options.group._added(x, array)
    if not options.blocking:
        return Work(getattr(comm._core, "start_" + direction)(*arguments), x, array)
    getattr(comm._core, direction)(*arguments)
    return x


def _shape(x: Any, new_shape: Callable[[], Tuple[int, ...]]) -> Tuple[int, ...]:
    # If x has no shape, it is not a NumPy array, and new_like() raises an error, whatever this function returns.
    return new_shape() if hasattr(x, "shape") else ()


def _require_both(comm: Any, kind: str, root: int, source: Optional[Array], target: Optional[Array]) -> None:
    buffers = _BUFFERS[kind]
    needs_input = not buffers.root_in or comm.rank == root
    needs_output = kind != "broadcast" and (not buffers.root_out or comm.rank == root)
    if needs_input and source is None:
        raise InvalidArgumentError(f"{kind} needs an input on rank {comm.rank}: None was given")
    if needs_output and target is None:
        raise InvalidArgumentError(f"{kind} needs an output on rank {comm.rank}: None was given")


def _algorithm(name: Optional[str]) -> int:
    if name is None:
        return 0
    if name not in _core.algorithms:
        raise InvalidArgumentError(f"there is no algorithm {name!r}: take one of {', '.join(_core.algorithms)}")
    return _core.algorithms[name]


def _stream(stream: Any, array: Array) -> Optional[int]:
    given = stream_number(stream)
    return array.stream if given is None else given


def _block(size: int, kind: str, source: Optional[Array], target: Optional[Array]) -> int:
    """Returns the number of elements of one block. Raises InvalidArgumentError if the lengths of input and output do
    not match, or are not divisible into equal blocks."""
    got = tuple(None if array is None else array.elements for array in (source, target))
    buffers = _BUFFERS[kind]
    rows = (size if buffers.blocks_in else 1, size if buffers.blocks_out else 1)
    first = 0 if got[0] is not None else 1
    length = got[first]
    assert length is not None
    if length % rows[first] != 0:
        raise InvalidArgumentError(
            f"{kind}: {'input' if first == 0 else 'output'} has {length} elements, which are not {size} "
            "equal parts: give a multiple"
        )
    block = length // rows[first]
    if got[1] is not None and got[1] != block * rows[1]:
        raise InvalidArgumentError(
            f"{kind} over {size} ranks: the input has {got[0]} elements, so the output must have "
            f"{block * rows[1]}, and has {got[1]}"
        )
    return block


def _parts(
    comm: Any,
    kind: str,
    factor: int,
    source: Optional[Array],
    target: Optional[Array],
    parts_in: Optional[Counts],
    parts_out: Optional[Counts],
) -> Tuple[int, Tuple[Any, ...]]:
    """Returns the arguments of _core for a v-variant: its count, and its four lists (input counts, output counts, input
    displacements, output displacements). `factor`: each array element is this many elements for _core."""
    lists: List[Any] = []
    for parts, array, what in ((parts_in, source, "input"), (parts_out, target, "output")):
        lists.append(None if parts is None else _list(comm, kind, parts, array, what))
    buffers = _BUFFERS[kind]
    count = 0
    if not buffers.blocks_in and source is not None:
        count = source.elements
    elif not buffers.blocks_out and target is not None:
        count = target.elements
    known = lists[0] if buffers.blocks_in else lists[1]
    one_block = not (buffers.blocks_in and buffers.blocks_out)  # the input or the output is this rank's block alone
    if one_block and known is not None and known.counts[comm.rank] != count:
        raise InvalidArgumentError(
            f"{kind}_v: counts say {known.counts[comm.rank]} elements for rank {comm.rank}, and its array has {count}"
        )
    # Only the root of a gather_v or scatter_v has the counts. Other ranks pass an empty list, which shows _core that
    # the call is a v-variant.
    if parts_in is None and parts_out is None:
        lists = [None, Counts([])] if buffers.blocks_out else [Counts([]), None]

    def scaled(values: Optional[Sequence[int]]) -> Optional[List[int]]:
        return None if values is None else [value * factor for value in values]

    columns = [scaled(None if entry is None else entry.counts) for entry in lists]
    columns += [scaled(None if entry is None else entry.displacements) for entry in lists]
    return count * factor, tuple(columns)


def _list(comm: Any, kind: str, parts: Counts, array: Optional[Array], what: str) -> Counts:
    if parts.counts is None:
        raise InvalidArgumentError(f"{kind}_v needs counts on rank {comm.rank}: None was given")
    given = (*parts.counts, *(() if parts.displacements is None else parts.displacements))
    wrong = [x for x in given if not isinstance(x, SupportsIndex)]
    if wrong:
        raise InvalidArgumentError(f"{kind}_v: {wrong[0]!r} is no number of elements: give whole numbers")
    counts = [int(count) for count in parts.counts]
    starts = None if parts.displacements is None else [int(start) for start in parts.displacements]
    for name, values in (("counts", counts), ("displacements", starts)):
        if values is not None and (len(values) != comm.size or min(values) < 0):
            raise InvalidArgumentError(
                f"{kind}_v: {name} must be {comm.size} numbers, one for each rank, none below 0: got {values}"
            )
    ends = [start + count for start, count in zip(starts, counts) if count > 0] if starts is not None else [sum(counts)]
    length = 0 if array is None else array.elements
    if max(ends, default=0) > length:
        raise InvalidArgumentError(
            f"{kind}_v: its counts require {max(ends)} elements in the {what}, which has {length}"
        )
    return Counts(counts, starts)
