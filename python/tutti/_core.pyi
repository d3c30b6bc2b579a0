"""Tutti's C++ API with addresses (integers; 0 is null) instead of arrays, and numbers instead of enumerators.

The headers include/tutti/*.h describe the functions; the comments here describe only the differences. If a function
fails, it raises a tutti.errors.Error, or an exception of Python for an argument of a wrong type. Functions that wait
for other ranks let other threads run, and Ctrl-C ends them in the main thread, except shrink(), agree() and
create_all(). Every object may be used from any thread. The caller must keep the memory at an address alive until the
call, or its Work, has ended.
"""

from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

version: str
# The numbers of the enumerators by their names, for example "float32" or "sum" (to_string() in include/tutti/types.h).
data_types: Dict[str, int]
reduce_ops: Dict[str, int]
collectives: Dict[str, int]
# For each collective, whether: it reduces; its input has a block for each rank; its output has a block for each rank;
# only the root has an input; only the root has an output (the table in include/tutti/collectives.h).
collective_buffers: Dict[str, Tuple[bool, bool, bool, bool, bool]]
algorithms: Dict[str, int]
error_codes: Dict[str, int]
error_scopes: Dict[str, int]
# The numbers of the reductions in addition to reduce_ops, by name: bit_and, bit_or, bit_xor (for a dtype of any size),
# and int16_sum, ..., uint16_max (for a dtype of 2 bytes).
reductions: Dict[str, int]
type_sizes: Dict[int, int]  # bytes of an element, by the number of its data type

class Communicator:
    @staticmethod
    def create(
        *,
        rank: int = -1,
        size: int = -1,
        root: str = "",
        job_id: str = "",
        job_key_file: str = "",
        interface: str = "",
        unique_id: Optional[bytes] = None,
        transport: str = "",
        attach: str = "",
        encrypt: Optional[bool] = None,
        node_id: str = "",
        device: Optional[int] = None,
        device_calls: str = "",
        uniform: Optional[int] = None,
        checksum: Optional[bool] = None,
        setup_timeout_ms: int = 0,
        timeout_ms: int = 0,
    ) -> Communicator: ...
    @staticmethod
    def create_all(
        size: int, *, transport: str = "", nodes: int = 1, setup_timeout_ms: int = 0, timeout_ms: int = 0
    ) -> List[Communicator]: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def runs_on_devices(self) -> bool: ...
    # run() and start() make one collective call. If counts are given, it is the v-variant; a rank of gather_v or
    # scatter_v that has no counts passes []. scale: the factor of premulsum. stream: a CUstream as a number, for arrays
    # in GPU memory. reduction: a number in `reductions`, which replaces op; 0: op is used. uniform and checksum: as the
    # options of the same names in tutti/communicator.py.
    def run(
        self,
        kind: int,
        input: int,
        output: int,
        count: int,
        dtype: int,
        op: int = 0,
        root: int = 0,
        algorithm: int = 0,
        timeout_ms: int = 0,
        scale: Union[int, float, None] = None,
        stream: Optional[int] = None,
        input_counts: Optional[Sequence[int]] = None,
        output_counts: Optional[Sequence[int]] = None,
        input_displacements: Optional[Sequence[int]] = None,
        output_displacements: Optional[Sequence[int]] = None,
        reduction: int = 0,
        uniform: bool = False,
        checksum: bool = False,
    ) -> None: ...
    def start(
        self,
        kind: int,
        input: int,
        output: int,
        count: int,
        dtype: int,
        op: int = 0,
        root: int = 0,
        algorithm: int = 0,
        timeout_ms: int = 0,
        scale: Union[int, float, None] = None,
        stream: Optional[int] = None,
        input_counts: Optional[Sequence[int]] = None,
        output_counts: Optional[Sequence[int]] = None,
        input_displacements: Optional[Sequence[int]] = None,
        output_displacements: Optional[Sequence[int]] = None,
        reduction: int = 0,
        uniform: bool = False,
        checksum: bool = False,
    ) -> Work: ...
    # The fast path of a blocking collective. It requires contiguous NumPy arrays of the same Tutti type with matching
    # lengths, an op that is not negative, and an int as root; output None means in place. Runs the call and returns
    # True; for other arguments it does nothing and returns False.
    def quick(self, kind: int, input: object, output: Optional[object], op: int, root: int) -> bool: ...
    def send(
        self, address: int, count: int, dtype: int, peer: int, timeout_ms: int = 0, stream: Optional[int] = None
    ) -> None: ...
    def receive(
        self, address: int, count: int, dtype: int, peer: int, timeout_ms: int = 0, stream: Optional[int] = None
    ) -> None: ...
    def start_send(
        self, address: int, count: int, dtype: int, peer: int, timeout_ms: int = 0, stream: Optional[int] = None
    ) -> Work: ...
    def start_receive(
        self, address: int, count: int, dtype: int, peer: int, timeout_ms: int = 0, stream: Optional[int] = None
    ) -> Work: ...
    def next_sender(self, timeout_ms: int = 0) -> int: ...
    def barrier(self, timeout_ms: int = 0) -> None: ...
    def split(self, colour: int, key: int = 0) -> Optional[Communicator]: ...  # None for colour -1 (no colour)
    def duplicate(self) -> Communicator: ...
    def shrink(self, excluded: Optional[Sequence[int]] = None) -> Communicator: ...
    def grow(self, size: int, unique_id: Optional[bytes] = None) -> Communicator: ...
    def agree(self, value: int = ..., timeout_ms: int = 0) -> Agreement: ...
    def finalize(self) -> None: ...
    def abort(self) -> None: ...
    def async_status(self) -> None: ...  # raises the error, if there is one
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def device_memory_use(self) -> int: ...  # bytes of GPU memory that suspend() frees, without plans
    def allocate(self, bytes: int) -> Memory: ...
    def register_memory(self, address: int, bytes: int) -> Memory: ...
    def auto_algorithm(self, kind: int, count: int, dtype: int) -> int: ...
    def predicted_us(self, kind: int, count: int, dtype: int, algorithm: int = 0) -> Optional[float]: ...

class Agreement:
    @property
    def survivors(self) -> List[int]: ...
    @property
    def last_operation(self) -> int: ...
    @property
    def value(self) -> int: ...

class Group:
    """Keeps the communicators of its calls alive until run(), start() or drop(), which all leave the group empty.
    drop() discards the calls."""

    def __init__(self) -> None: ...
    def add(
        self,
        communicator: Communicator,
        kind: int,
        input: int,
        output: int,
        count: int,
        dtype: int,
        op: int = 0,
        root: int = 0,
        algorithm: int = 0,
        timeout_ms: int = 0,
        scale: Union[int, float, None] = None,
        stream: Optional[int] = None,
        input_counts: Optional[Sequence[int]] = None,
        output_counts: Optional[Sequence[int]] = None,
        input_displacements: Optional[Sequence[int]] = None,
        output_displacements: Optional[Sequence[int]] = None,
        reduction: int = 0,
        uniform: bool = False,
        checksum: bool = False,
    ) -> None: ...
    def send(
        self,
        communicator: Communicator,
        address: int,
        count: int,
        dtype: int,
        peer: int,
        timeout_ms: int = 0,
        stream: Optional[int] = None,
    ) -> None: ...
    def receive(
        self,
        communicator: Communicator,
        address: int,
        count: int,
        dtype: int,
        peer: int,
        timeout_ms: int = 0,
        stream: Optional[int] = None,
    ) -> None: ...
    def run(self) -> None: ...
    def start(self) -> Work: ...
    def drop(self) -> None: ...

class Work:
    """Keeps its communicators alive as long as it exists and, if keep() was called, until the operation has ended."""

    def wait(self) -> None: ...
    def test(self) -> bool: ...
    # Keeps the object alive until the operation has ended, even if this Work is destroyed earlier. If keep() is called
    # several times, only the object of the last call is kept.
    def keep(self, object: Optional[object]) -> None: ...

class Memory:
    """Keeps its communicator alive. Supports the buffer protocol, as writable bytes."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...  # in bytes; 0 after release()
    def __buffer__(self, flags: int, /) -> memoryview: ...
    # Releases the memory. Raises BufferError if memoryviews or arrays of it exist. A second call does nothing.
    def release(self) -> None: ...

def create_unique_id(
    interface: str = "", first_port: int = 0, last_port: int = 0, timeout_ms: int = 600000, job_key_file: str = ""
) -> bytes: ...
def unique_id_from_text(text: str) -> bytes: ...
def unique_id_to_text(unique_id: bytes) -> str: ...

# Functions that only tutti/errors.py and tutti/arrays.py call. python/src/arrays.cc describes the result of describe().
def set_error_class(
    factory: Callable[[int, int, int, str], BaseException],
) -> None: ...  # code, scope, rank or -1, message
def error_text(code: int, message: str) -> str: ...
def set_array_type(type: type) -> None: ...
def describe(array: object) -> Optional[Tuple[int, int, bool, int, int, bool, int, int, object]]: ...
