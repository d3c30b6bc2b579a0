"""Set-up: the ranks of a process group find each other through torch's store, to which all of them are connected."""

from __future__ import annotations

import dataclasses
import fcntl
import ipaddress
import os
import socket
import struct
from datetime import timedelta
from typing import Any, List, Optional

import torch

from .. import _core
from ..call import uniform_calls
from ..errors import DeadlineError, Error

_LONGEST_MS = 2**31 - 1


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


class GroupStore:
    """The keys of one process group in torch's store. Each group uses new keys, because a group may be created again in
    the same store, and because torch gives groups of different sizes the same name."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timedelta(milliseconds=milliseconds(timeout))
        # Each rank increments a counter when it begins the set-up of a group, and completes the set-up only after all
        # ranks have begun it. So the first `size` increments belong to the first group (round 0), the next `size` to
        # the second one, and so on.
        self._round = (store.add(self._joined(), 1) - 1) // size

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

    def _has(self, key: str) -> bool:
        if hasattr(self._store, "check"):
            return bool(self._store.check([key]))
        try:  # torch 1.13 has no check()
            self._store.wait([key], timedelta(milliseconds=10))
        except RuntimeError:
            return False
        return True

    def wait_for(self, names: List[str]) -> List[str]:
        """Waits for the values of all names, and returns them in this order. Raises a DeadlineError with the names
        whose values are missing."""
        keys = [self._key(name) for name in names]
        try:
            self._store.wait(keys, self._timeout)
        except RuntimeError as error:
            missing = [name for name, key in zip(names, keys) if not self._has(key)]
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


def join(store: Any, rank: int, size: int, timeout: timedelta, options: Options) -> Any:
    """Creates the communicator of a process group. Collective over the ranks that use the same store and prefix. Waits
    for the other ranks at most about twice `timeout`: for their keys in the store, and in the set-up.

    Errors: those of tutti.Communicator(), and a DeadlineError that names the ranks that have not joined.
    """
    group_store = GroupStore(store, rank, size, timeout)
    try:
        unique_id = _unique_id(group_store, rank, size, timeout, options)
    except DeadlineError:
        group_store.leave()
        raise
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
        setup_timeout_ms=milliseconds(timeout),
        timeout_ms=milliseconds(timeout),
    )
