"""How the ranks of a process group find each other: through torch's store, which all of them share already."""

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
from ..errors import DeadlineError, Error

_LONGEST_MS = 2**31 - 1


@dataclasses.dataclass
class Options:
    """Of one process group: init_process_group(..., pg_options=tutti.torch.Options(...)). Fields left alone: Tutti's
    environment variables (docs/config.md), then the defaults.

    interface   network interface (name, subnet or address) of this rank's data, and of rank 0 for meeting
    transport   "auto", "shm" or "tcp"
    device      number of this rank's GPU; default: the current device
    encrypt     whether what goes between machines is encrypted (the same on all ranks)
    uniform     whether collectives end alike on all ranks (the same on all ranks)
    checksum    whether messages carry checksums (the same on all ranks)
    """

    interface: str = ""
    transport: str = ""
    device: Optional[int] = None
    encrypt: Optional[bool] = None
    uniform: Optional[bool] = None
    checksum: Optional[bool] = None
    _timeout: Optional[timedelta] = dataclasses.field(default=None, repr=False)  # torch's, under torch's name


def milliseconds(timeout: timedelta) -> int:
    """At least 1. torch's C++ turns the longest times into negative ones; they are as long as can be, too."""
    if timeout.days < 0:
        return _LONGEST_MS
    return max(1, min(_LONGEST_MS, timeout // timedelta(milliseconds=1)))


def _first_line(path: str) -> str:
    """Empty if the file cannot be read."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


_NO_BOOT_ID = "unknown boot of "


def _machine() -> str:
    """The name of this machine and its network. If it begins with the kernel's boot id, processes with equal names
    reach each other over the loopback interface. Some sandboxes hide the boot id (gVisor, a container that masks parts
    of /proc). The name then begins with "unknown boot of HOST": equal on all processes of one machine, but not proof
    that two processes share a machine, because two sandboxes may have the same host name and machine id."""
    boot = _first_line("/proc/sys/kernel/random/boot_id")
    if not boot:
        boot = f"{_NO_BOOT_ID}{socket.gethostname()} {_first_line('/etc/machine-id')}"
    try:
        network = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        network = "unknown"
    return f"{boot} {network}"


def _is_here(address: str) -> bool:
    """Whether the address is one of this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_outward(address: str) -> bool:
    """Whether other machines may reach the address: neither loopback nor link-local."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _addresses(host: str) -> List[str]:
    """The numeric addresses of a name on this machine, each once; none if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _source_towards(address: str) -> Optional[str]:
    """The address of this machine from which it reaches another one. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _interface_addresses() -> List[str]:
    """The addresses of this machine's interfaces, IPv4 first."""
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
    """The host of torch's store, as this rank was told; this machine's name if the store is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "")) or os.environ.get("MASTER_ADDR") or socket.gethostname()


def _outward_address(host: str, seen_by_others: List[str]) -> Optional[str]:
    """The address of this machine, rank 0's, where ranks on other machines meet it. A name may be a loopback address
    on the machine that has this name (127.0.1.1 in the hosts file of some distributions), so the addresses that the
    others resolve it to count as well. The name may also be missing, as with a store in a file. Then this takes the
    address on the default route, or else that of any interface."""
    own = _addresses(host)
    for address in own + seen_by_others:
        if _is_outward(address) and _is_here(address):
            return address
    # Addresses for use in documents, which belong to nobody: the route to them is the default one.
    routes = [_source_towards(address) for address in own + ["198.51.100.1", "2001:db8::1"]]
    for source in routes + _interface_addresses():
        if source is not None and _is_outward(source) and _is_here(source):
            return source
    return None


def _meeting_interface(options: Options, host: str, ranks: List[str]) -> str:
    """`ranks`: what _introduction() gave on each rank."""
    if options.interface:
        return options.interface
    if os.environ.get("TUTTI_INTERFACE"):
        return ""  # the runtime reads it
    machines = [rank.split("|")[0] for rank in ranks]
    same_name = machines.count(machines[0]) == len(machines)
    is_proof = not machines[0].startswith(_NO_BOOT_ID)
    if same_name and is_proof:
        return "lo"
    others = [rank for rank, machine in zip(ranks, machines) if same_name or machine != machines[0]]
    seen = [address for rank in others for address in rank.split("|")[1].split(",") if address]
    address = _outward_address(host, list(dict.fromkeys(seen)))
    if address is None and same_name:
        return "lo"  # the ranks can meet nowhere else, and most likely they do share a machine
    if address is None:
        raise _config(
            f"the ranks are on several machines, but rank 0 finds no address that others reach ({host} is "
            f"{', '.join(_addresses(host)) or 'unknown'} here): set TUTTI_INTERFACE to the network interface that they do"
        )
    return address


def _introduction(host: str) -> str:
    """This rank's machine, and the addresses that it resolves the store's host to."""
    return f"{_machine()}|{','.join(_addresses(host))}"


def _config(words: str) -> Error:
    from ..errors import ConfigError

    return ConfigError(words, code="configuration", scope="communicator")


class Meeting:
    """The keys of one group in the store. A group that is made again, in the same store, takes new ones: torch gives
    groups of other sizes the same names, too."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timedelta(milliseconds=milliseconds(timeout))
        # Nobody has left a group's set-up before all have come, so the first `size` calls are of the first group.
        self._round = (store.add(self._joined(), 1) - 1) // size

    def _joined(self) -> str:
        return f"tutti/{self._size}/joined"

    def _key(self, name: str) -> str:
        return f"tutti/{self._size}/{self._round}/{name}"

    def host(self) -> str:
        return _store_host(self._store)

    def leave(self) -> None:
        """Not all have come: those that try again are the first of this round anew."""
        self._store.add(self._joined(), -1)

    def tell(self, name: str, value: str) -> None:
        self._store.set(self._key(name), value)

    def _has(self, key: str) -> bool:
        if hasattr(self._store, "check"):
            return bool(self._store.check([key]))
        try:  # torch 1.13 can only wait
            self._store.wait([key], timedelta(milliseconds=10))
        except RuntimeError:
            return False
        return True

    def hear(self, names: List[str]) -> List[str]:
        """The values, when all are there; else DeadlineError naming what is missing."""
        keys = [self._key(name) for name in names]
        try:
            self._store.wait(keys, self._timeout)
        except RuntimeError as error:
            missing = [name for name, key in zip(names, keys) if not self._has(key)]
            words = f"after {self._timeout.total_seconds():g} s the store lacks: {', '.join(missing)} ({error})"
            raise DeadlineError(words, code="timeout", scope="communicator") from error
        return [self._store.get(key).decode() for key in keys]


def _unique_id(meeting: Meeting, rank: int, size: int, timeout: timedelta, options: Options) -> bytes:
    host = meeting.host()
    if rank > 0:
        meeting.tell(f"rank {rank}", _introduction(host))
        (text,) = meeting.hear(["word of rank 0"])
        if text.startswith("!"):
            raise _config(f"rank 0 could not open a place to meet: {text[1:]}")
        return _core.unique_id_from_text(text)
    ranks = [_introduction(host)] + meeting.hear([f"rank {other}" for other in range(1, size)])
    try:
        interface = _meeting_interface(options, host, ranks)
        unique_id = _core.create_unique_id(interface=interface, patience_ms=min(milliseconds(timeout), 86_400_000))
    except Exception as error:  # whatever it is, the others would wait until their deadline
        meeting.tell("word of rank 0", f"!{getattr(error, 'message', str(error))}")
        raise
    meeting.tell("word of rank 0", _core.unique_id_to_text(unique_id))
    return unique_id


def _device(options: Options) -> Optional[int]:
    """The GPU of this rank: the one named, else the current one, or before there is one that of the local rank."""
    if options.device is not None or not torch.cuda.is_available():
        return options.device
    if torch.cuda.is_initialized() and torch.cuda.current_device() > 0:
        return torch.cuda.current_device()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return local if local < torch.cuda.device_count() else torch.cuda.current_device()


def join(store: Any, rank: int, size: int, timeout: timedelta, options: Options) -> Any:
    """A new communicator of all ranks that share the store's prefix. Collective; at most about `timeout`.

    Errors: as tutti's Communicator(); DeadlineError naming the ranks that have not come to the store.
    """
    meeting = Meeting(store, rank, size, timeout)
    try:
        unique_id = _unique_id(meeting, rank, size, timeout, options)
    except DeadlineError:
        meeting.leave()
        raise
    return _core.Communicator.create(
        rank=rank,
        size=size,
        unique_id=unique_id,
        interface=options.interface,
        transport=options.transport,
        device=_device(options),
        encrypt=options.encrypt,
        uniform=options.uniform,
        checksum=options.checksum,
        setup_timeout_ms=milliseconds(timeout),
        timeout_ms=milliseconds(timeout),
    )
