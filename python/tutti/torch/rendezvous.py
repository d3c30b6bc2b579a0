"""Set-up: the ranks of a process group find each other through torch's store, to which all of them are connected."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import ipaddress
import os
import socket
import struct
import time
import uuid
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Tuple

import torch

from .. import _core
from ..call import uniform_calls
from ..errors import DeadlineError, Error, MismatchError

_LONGEST_MS = 2**31 - 1
# Pauses between two looks for keys of other ranks.
_FIRST_PAUSE_S = 5e-4
_LONGEST_PAUSE_S = 0.1
_LONGEST_FAREWELL = timedelta(seconds=5)


@dataclasses.dataclass
class Options:
    """Options of one process group: init_process_group(..., pg_options=tutti.torch.Options(...)). For a field that is
    not set, Tutti's environment variables (docs/config.md) and then the defaults apply.

    interface   network interface (name, subnet or address) for this rank's data, and on rank 0 also for set-up
    transport   "auto", "shm", "tcp", "verbs" or "ucx", as TUTTI_TRANSPORT
    device      number of this rank's GPU; default: the current device
    encrypt     whether data between machines is encrypted (the same on all ranks)
    uniform     whether a blocking collective on host memory has the same outcome on all ranks (the same on all ranks)
    checksum    whether messages carry checksums (the same on all ranks)
    """

    interface: str = ""
    transport: str = ""
    device: Optional[int] = None
    encrypt: Optional[bool] = None
    uniform: Optional[bool] = None
    checksum: Optional[bool] = None
    _timeout: Optional[timedelta] = dataclasses.field(default=None, repr=False)  # torch reads it


def milliseconds(timeout: timedelta) -> int:
    """Returns the timeout in milliseconds, from 1 to _LONGEST_MS. A negative value is treated as the longest timeout,
    because torch's C++ code turns very long times into negative ones."""
    if timeout.days < 0:
        return _LONGEST_MS
    return max(1, min(_LONGEST_MS, timeout // timedelta(milliseconds=1)))


def _first_line(path: str) -> str:
    """Returns the first line of a file, or an empty text if the file cannot be read."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


_NO_BOOT_ID = "unknown boot of "


def _machine() -> str:
    """Returns a name for this machine and the network namespace of this process. If the name begins with the kernel's
    boot id, processes with equal names reach each other over the loopback interface. Some sandboxes hide the boot id
    (for example gVisor, or a container that masks parts of /proc). The name then begins with "unknown boot of HOST".
    Such a name is also the same for all processes of one machine, but equal names do not prove that two processes share
    a machine, because two sandboxes may have the same host name and machine id."""
    boot = _first_line("/proc/sys/kernel/random/boot_id")
    if not boot:
        boot = f"{_NO_BOOT_ID}{socket.gethostname()} {_first_line('/etc/machine-id')}"
    try:
        network = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        network = "unknown"
    return f"{boot} {network}"


def _is_here(address: str) -> bool:
    """Whether `address` (a numeric IP address) belongs to an interface of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_outward(address: str) -> bool:
    """Whether other machines may be able to reach the address, because it is neither a loopback, nor a link-local, nor
    the unspecified address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _addresses(host: str) -> List[str]:
    """Returns the numeric addresses to which this machine resolves a name, without duplicates. Returns an empty list if
    the name cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _source_towards(address: str) -> Optional[str]:
    """Returns the address of this machine from which it would send to `address`, or None if it has no route there.
    Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _interface_addresses() -> List[str]:
    """Returns the addresses of this machine's interfaces: first one IPv4 address of each interface, then the IPv6
    addresses."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    try:
        with open("/proc/net/if_inet6") as file:
            found += [str(ipaddress.IPv6Address(int(line.split()[0], 16))) for line in file]
    except OSError:
        pass
    return found


def _store_host(store: Any) -> str:
    """Returns the host of torch's store by the name or address that this rank uses. If the store has no host (a store
    in a file), returns MASTER_ADDR or, if that is not set, the name of this machine."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "")) or os.environ.get("MASTER_ADDR") or socket.gethostname()


def _outward_address(host: str, seen_by_others: List[str]) -> Optional[str]:
    """Called on rank 0. Returns an address of this machine that ranks on other machines can probably reach, or None.
    `host` is the host of the store, which usually is this machine; `seen_by_others` are the addresses to which the
    other ranks resolve it. They are considered because a machine may resolve its own name to a loopback address
    (127.0.1.1 in the hosts file of some distributions). If no address of `host` can be used, for example with a store
    in a file, returns this machine's address on the route to `host` or on the default route, or the address of any
    interface."""
    own = _addresses(host)
    for address in own + seen_by_others:
        if _is_outward(address) and _is_here(address):
            return address
    # 198.51.100.1 and 2001:db8::1 are reserved for documentation and not in use, so the route to them is the default
    # route.
    routes = [_source_towards(address) for address in own + ["198.51.100.1", "2001:db8::1"]]
    for source in routes + _interface_addresses():
        if source is not None and _is_outward(source) and _is_here(source):
            return source
    return None


def _rendezvous_interface(options: Options, host: str, ranks: List[str]) -> str:
    """Called on rank 0. Returns the interface or address on which rank 0 listens for set-up; an empty text: as
    TUTTI_INTERFACE. `ranks`: the results of _machine_and_addresses() on all ranks. Raises ConfigError if the ranks are
    on several machines, and no address of this machine can be reached."""
    if options.interface:
        return options.interface
    if os.environ.get("TUTTI_INTERFACE"):
        return ""  # the C++ library reads the variable
    machines = [rank.split("|")[0] for rank in ranks]
    same_name = machines.count(machines[0]) == len(machines)
    is_proof = not machines[0].startswith(_NO_BOOT_ID)
    if same_name and is_proof:
        return "lo"
    others = [rank for rank, machine in zip(ranks, machines) if same_name or machine != machines[0]]
    seen = [address for rank in others for address in rank.split("|")[1].split(",") if address]
    address = _outward_address(host, list(dict.fromkeys(seen)))
    if address is None and same_name:
        return "lo"  # there is no other address, and equal names mean that the ranks most likely share a machine
    if address is None:
        raise _config(
            f"the ranks are on several machines, but rank 0 has no address that the others can reach ({host} is "
            f"{', '.join(_addresses(host)) or 'unknown'} here): set TUTTI_INTERFACE to an interface that they can reach"
        )
    return address


def _machine_and_addresses(host: str) -> str:
    """Returns the text "MACHINE|ADDRESS,ADDRESS...": the name of this rank's machine, and the addresses to which the
    machine resolves the host of the store."""
    return f"{_machine()}|{','.join(_addresses(host))}"


def _config(words: str) -> Error:
    from ..errors import ConfigError

    return ConfigError(words, code="configuration", scope="communicator")


def describe_ranks(ranks: Sequence[int]) -> str:
    """Returns a short text for a list of ranks: "0-3,6" for [0, 1, 2, 3, 6]."""
    parts: List[str] = []
    first = last = -2
    for rank in ranks:
        if rank == last + 1:
            last = rank
            parts[-1] = f"{first}-{last}"
        else:
            first = last = rank
            parts.append(str(rank))
    return ",".join(parts)


def listed_ranks(text: str) -> List[int]:
    """The inverse of describe_ranks()."""
    ends = [part.partition("-") for part in text.split(",")]
    return [rank for first, _, last in ends for rank in range(int(first), int(last or first) + 1)]


class GroupStore:
    """The keys of one process group in torch's store. Each group uses new keys, because a group may be created again in
    the same store, and because torch gives groups of different sizes the same name.

    `global_ranks`: the ranks of the group in the default group. `world_identity`: the identity of the default group;
    empty: it is not a group of this backend, or this group is the default group. The constructor raises a MismatchError
    if another rank has passed another list of ranks for the same group.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        global_ranks: Sequence[int] = (),
        world_identity: str = "",
    ):
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timedelta(milliseconds=milliseconds(timeout))
        self._ranks = describe_ranks(global_ranks)
        self._global_rank = global_ranks[rank] if global_ranks else rank
        self._world_identity = world_identity
        if world_identity and size > 1:  # a rank that makes a group of its own waits for nobody
            self._compare_ranks()
        # Each rank increments a counter when it begins the set-up of a group, and completes the set-up only after all
        # ranks have begun it. So the first `size` increments belong to the first group (round 0), the next `size` to
        # the second one, and so on.
        self._round = (store.add(self._joined(), 1) - 1) // size

    def _compare_ranks(self) -> None:
        """Compares this rank's list of the group's ranks with that of the first rank that has joined. If they differ,
        the ranks with the other list are told, because they would wait for this rank. While the default group exists,
        torch gives no two groups with different ranks the same keys."""
        first = self._store.compare_set(f"tutti/{self._world_identity}/ranks", "", self._ranks).decode()
        if first != self._ranks:
            self._store.set(self._other_ranks(), self._ranks)
            raise self._mismatch(first)
        if self._has([self._other_ranks()]):
            raise self._mismatch(self._store.get(self._other_ranks()).decode())

    def _other_ranks(self) -> str:
        return f"tutti/{self._world_identity}/other ranks"

    def _mismatch(self, others: str) -> Error:
        """Returns the error. Waits a moment for the ranks of both lists, because a program usually ends after this
        error, and if this process has the store, the others could not read it any more."""
        self._store.set(f"tutti/{self._world_identity}/told/{self._global_rank}", "")
        both = {*listed_ranks(self._ranks), *listed_ranks(others)}
        told = [f"tutti/{self._world_identity}/told/{rank}" for rank in both]
        limit = time.monotonic() + min(self._timeout, _LONGEST_FAREWELL).total_seconds()
        try:
            while not self._has(told) and time.monotonic() < limit:
                time.sleep(0.05)
        except RuntimeError:
            pass  # the process with the store has ended, so all ranks had told it that they know
        return MismatchError(
            f"the ranks that make this group disagree on its ranks: this rank has passed {self._ranks}, another rank "
            f"{others}: every rank must call new_group() with the same lists in the same order",
            code="mismatch between ranks",
            scope="communicator",
        )

    def _joined(self) -> str:
        return f"tutti/{self._size}/joined"

    def _key(self, name: str) -> str:
        return f"tutti/{self._size}/{self._round}/{name}"

    def host(self) -> str:
        return _store_host(self._store)

    def leave(self) -> None:
        """Takes back this rank's increment, because not all ranks have joined in time. Ranks that try again then belong
        to the same round."""
        self._store.add(self._joined(), -1)

    def publish(self, name: str, value: str) -> None:
        self._store.set(self._key(name), value)

    def _has(self, keys: List[str]) -> bool:
        """Whether the store has all these keys."""
        if hasattr(self._store, "check"):
            return bool(self._store.check(keys))
        try:  # torch 1.13 has no check()
            self._store.wait(keys, timedelta(milliseconds=10))
        except RuntimeError:
            return False
        return True

    def _wait_for_keys(self, keys: List[str]) -> None:
        """Raises a RuntimeError if they are not there in time, and a MismatchError if another rank has passed other
        ranks for this group."""
        if not self._world_identity:
            return self._store.wait(keys, self._timeout)
        # Polls two conditions: the keys, and the key by which another rank reports other ranks. wait() cannot do that,
        # and it logs each timeout.
        deadline = time.monotonic() + self._timeout.total_seconds()
        pause = _FIRST_PAUSE_S
        while not self._has(keys):
            if self._has([self._other_ranks()]):
                raise self._mismatch(self._store.get(self._other_ranks()).decode())
            if time.monotonic() >= deadline:
                raise RuntimeError("timed out")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def wait_for(self, names: List[str]) -> List[str]:
        """Waits for the values of all names, and returns them in this order. Raises a DeadlineError with the names
        whose values are missing, and a MismatchError if a rank has passed other ranks for this group."""
        keys = [self._key(name) for name in names]
        try:
            self._wait_for_keys(keys)
        except Error:
            raise
        except RuntimeError as error:
            missing = [name for name, key in zip(names, keys) if not self._has([key])]
            words = f"after {self._timeout.total_seconds():g} s the store lacks: {', '.join(missing)} ({error})"
            raise DeadlineError(words, code="timeout", scope="communicator") from error
        return [self._store.get(key).decode() for key in keys]


def _unique_id(group_store: GroupStore, rank: int, size: int, timeout: timedelta, options: Options) -> bytes:
    host = group_store.host()
    if rank > 0:
        group_store.publish(f"rank {rank}", _machine_and_addresses(host))
        (text,) = group_store.wait_for(["unique id of rank 0"])
        if text.startswith("!"):
            raise _config(f"rank 0 could not start the rendezvous server: {text[1:]}")
        return _core.unique_id_from_text(text)
    ranks = [_machine_and_addresses(host)] + group_store.wait_for([f"rank {other}" for other in range(1, size)])
    try:
        interface = _rendezvous_interface(options, host, ranks)
        unique_id = _core.create_unique_id(interface=interface, timeout_ms=min(milliseconds(timeout), 86_400_000))
    except Exception as error:  # published for the other ranks, because they would wait until their timeouts
        group_store.publish("unique id of rank 0", f"!{getattr(error, 'message', str(error))}")
        raise
    group_store.publish("unique id of rank 0", _core.unique_id_to_text(unique_id))
    return unique_id


def _device(options: Options) -> Optional[int]:
    """Returns the number of this rank's GPU: the device in the options. If none is given there, returns None if CUDA is
    not available, otherwise the current device. The exception: if CUDA is not initialized yet, or if the current device
    is 0, returns the device with the number LOCAL_RANK, if it exists."""
    if options.device is not None or not torch.cuda.is_available():
        return options.device
    if torch.cuda.is_initialized() and torch.cuda.current_device() > 0:
        return torch.cuda.current_device()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return local if local < torch.cuda.device_count() else torch.cuda.current_device()


def join(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    options: Options,
    global_ranks: Sequence[int] = (),
    world_identity: str = "",
) -> Tuple[Any, str]:
    """Returns the communicator of a new process group, and the identity of the group, which is the same on all ranks
    and of no other group. `global_ranks`, `world_identity`: as for GroupStore. Collective over the ranks that use the
    same store and prefix. Waits for the other ranks at most about twice `timeout`: for their keys in the store, and in
    the set-up.

    Errors: those of tutti.Communicator(), a DeadlineError that names the ranks that have not joined, and a
    MismatchError with both lists if the ranks disagree on `global_ranks`.
    """
    group_store = GroupStore(store, rank, size, timeout, global_ranks, world_identity)
    if size == 1:  # without a unique id, because its server would wait for ranks until the timeout
        return connect(0, 1, None, milliseconds(timeout), options), uuid.uuid4().hex
    try:
        unique_id = _unique_id(group_store, rank, size, timeout, options)
    except (DeadlineError, MismatchError):
        group_store.leave()
        raise
    identity = hashlib.sha256(unique_id).hexdigest()[:16]  # a hash, so that it does not reveal the secret
    return connect(rank, size, unique_id, milliseconds(timeout), options), identity


def connect(rank: int, size: int, unique_id: Optional[bytes], setup_timeout_ms: int, options: Options) -> Any:
    """Creates a communicator with the options of a process group. Collective over the ranks that use the unique id."""
    timeout_ms = milliseconds(options._timeout) if options._timeout is not None else setup_timeout_ms
    return _core.Communicator.create(
        rank=rank,
        size=size,
        unique_id=unique_id,
        interface=options.interface,
        transport=options.transport,
        device=_device(options),
        encrypt=options.encrypt,
        uniform=uniform_calls(options.uniform),
        checksum=options.checksum,
        setup_timeout_ms=setup_timeout_ms,
        timeout_ms=timeout_ms,
    )


def outward_interface(store: Any, options: Options) -> str:
    """Returns the interface or address on which this rank can listen for ranks on any machine; the loopback interface
    if this machine has no other address; an empty text: as TUTTI_INTERFACE."""
    if options.interface or os.environ.get("TUTTI_INTERFACE"):
        return options.interface
    return _outward_address(_store_host(store), []) or "lo"
