"""Reconfiguration: the same process group with other ranks, for programs that go on after a failure.

torch 2.14 and later have torch.distributed._get_reconfigure_handle() and _reconfigure(). Every process gives its handle
to the others, for example through a store, and all processes that are to form the group call _reconfigure() with the
same number and the same handles. No process of the old group has to be alive for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from array import array
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

import torch.distributed as dist
from torch.futures import Future

from .. import _core
from ..errors import AbortedError, DeadlineError, Error, MismatchError
from .base import DESTROYED, GRACE_S
from .errors import invalid
from .rendezvous import milliseconds
from .tables import ALL_REDUCE, INT64
from .transfers import Transfers

_MAX = _core.reduce_ops["max"]
# How long the rendezvous server of a handle waits for the first rank. A handle of half that age is replaced by a new
# one, when the program asks for it again.
_LIFE_MS = 86_400_000
# Handles of groups that have ended, whose servers no reconfiguration has used, by the interface on which the server
# listens. A new group takes one of them, because a server cannot be ended.
_spare: Dict[str, List["Handle"]] = {}
_spare_lock = threading.Lock()
_ENDED = "this process group was destroyed or aborted while it was being reconfigured"


class Handle(NamedTuple):
    text: str
    interface: str
    made_s: float  # when it was made, by the monotonic clock

    def is_fresh(self) -> bool:
        return self.text != "" and time.monotonic() - self.made_s < _LIFE_MS / 2000


_NONE = Handle("", "", 0.0)


class ReconfigureWork(dist.Work):
    """The work of a reconfiguration, which runs in a thread of its own."""

    def __init__(self, run: Callable[[], None]):
        super().__init__()
        self._error: Optional[Exception] = None
        self._future: Future = Future()
        self._ended = threading.Event()
        self._run = run
        threading.Thread(target=self._main, name="tutti reconfigure", daemon=True).start()

    def _main(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._error = error
        del self._run  # it refers to the group
        self._ended.set()
        if self._error is None:
            self._future.set_result([])
        else:
            self._future.set_exception(self._error)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        seconds = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        if not self._ended.wait(seconds):
            raise DeadlineError(f"the reconfiguration has not ended after {seconds:g} s", code="timeout")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:  # type: ignore[override]
        return self._error

    def result(self) -> List[Any]:
        return []

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future:
        return self._future


class Reconfigurable(Transfers):
    supports_reconfigure = True

    _handle = _NONE  # this rank's handle, whose server no reconfiguration has used yet; _NONE: there is none

    def _prepare_reconfiguration(self, connect: Callable[..., Any], interface: Callable[[], str]) -> None:
        """`connect(rank, size, unique_id, timeout_ms)` creates a communicator. `interface()` returns the interface on
        which the server of a handle listens."""
        self._connect = connect
        self._interface = interface
        self._used: Set[int] = set()  # the numbers of earlier reconfigurations
        self._reconfiguring = threading.Lock()  # held by the thread of a reconfiguration, from reconfigure() on
        self._destroyed = False  # after shutdown()
        self._cancelled = False  # after abort(): the reconfiguration in progress must not connect the group

    def get_reconfigure_handle(self) -> str:
        """Returns a text with which the other ranks can find this rank in a reconfiguration. Contains a secret: whoever
        has the handles can join. It stays the same until this rank was rank 0 of a reconfiguration, or until it is half
        a day old. The other ranks can use it for a day after it was made."""
        if self._destroyed:
            raise invalid(DESTROYED)
        if self._handle.is_fresh():
            return self._handle.text
        interface = self._interface()
        with _spare_lock:
            spare = [handle for handle in _spare.pop(interface, []) if handle.is_fresh()]
            if spare:
                self._handle = spare.pop()
                _spare[interface] = spare
                return self._handle.text
        unique_id = _core.create_unique_id(interface=interface, timeout_ms=_LIFE_MS)
        self._handle = Handle(_core.unique_id_to_text(unique_id), interface, time.monotonic())
        return self._handle.text

    def _drop_handle(self) -> None:
        """Gives an unused handle to the next group of this process."""
        handle, self._handle = self._handle, _NONE
        if handle.text:
            with _spare_lock:
                _spare.setdefault(handle.interface, []).append(handle)

    def reconfigure(self, opts: Any) -> ReconfigureWork:
        """Leaves the present communicator, ends its calls in progress with an error, and connects the ranks whose
        handles are in `opts.handles`. In a list, the position of a handle is its rank. A set is sorted first.
        Collective over these ranks. Returns a work; until it is done, the group cannot be used.

        Errors: InvalidArgumentError if `opts.uuid` was used before, if this rank's handle is not among the handles, if
        another reconfiguration of the group is in progress, or if the group was destroyed. The work raises a
        DeadlineError with the missing ranks, or a MismatchError if the ranks disagree on `opts.uuid` or on the handles;
        the group then has no communicator, and can be reconfigured again.
        """
        handles = list(opts.handles) if isinstance(opts.handles, list) else sorted(opts.handles)
        if opts.uuid in self._used:
            raise invalid(f"uuid {opts.uuid} was already used for a reconfiguration of this group: take a new one")
        if self._destroyed:
            raise invalid(DESTROYED)
        mine = self._handle.text
        if not mine or mine not in handles:
            raise invalid("this rank's handle is not among the handles: take those of get_reconfigure_handle()")
        if len(set(handles)) != len(handles):
            raise invalid("a handle occurs twice among the handles")
        if not self._reconfiguring.acquire(blocking=False):
            raise invalid("this process group is being reconfigured: wait for the work of reconfigure()")
        self._used.add(opts.uuid)
        self._cancelled = False
        rank = handles.index(mine)
        if rank == 0 and len(handles) > 1:
            self._handle = _NONE  # its server serves one group
        timeout = getattr(opts, "timeout", None)
        limit = milliseconds(timeout) if timeout else self._timeout_ms or milliseconds(self._first_timeout)
        self._refusal = "this process group is being reconfigured: wait for the work of reconfigure()"
        return ReconfigureWork(lambda: self._reconnect(rank, handles, opts.uuid, limit))

    def _reconnect(self, rank: int, handles: List[str], uuid: int, limit: int) -> None:
        """Called by the thread of the work, which then has the lock `_reconfiguring`."""
        communicator: Any = None
        try:
            self._leave()
            unique_id = _core.unique_id_from_text(handles[0]) if len(handles) > 1 else None
            communicator = self._connect(rank, len(handles), unique_id, limit)
            self._compare(communicator, uuid, handles, limit)
            self._connect_group(communicator)
        except Exception as error:
            if communicator is not None:
                # Not abort(), because the other ranks may still be in _compare(), and must find the disagreement, too.
                with contextlib.suppress(Error):
                    communicator.finalize()
            again = "the reconfiguration of this process group has failed: call reconfigure() again"
            self._refuse_calls(DESTROYED if self._destroyed else again)
            raise (self._convert_error(error) if isinstance(error, Error) else error) from None
        finally:
            self._reconfiguring.release()

    def _leave(self) -> None:
        """Leaves the present communicator. Calls in progress get a moment to end, because the other ranks may have
        entered them, too. Then they are aborted."""
        if self._unfinished(True):
            self._abort()
        timer = threading.Timer(GRACE_S, self._abort)  # for blocking calls of other threads
        timer.start()
        try:
            self._end()
        finally:
            timer.cancel()

    def _connect_group(self, communicator: Any) -> None:
        with self._lock:
            if not self._destroyed and not self._cancelled:
                self._global_ranks.clear()  # the default group may not have the new ranks
                self._prepare_transfers()
                self._use(communicator)
                return
        raise AbortedError(_ENDED, code="aborted", scope="communicator")

    def _compare(self, communicator: Any, uuid: int, handles: List[str], limit: int) -> None:
        """Raises a MismatchError if another rank has passed another uuid or other handles."""
        digest = hashlib.sha256("\n".join(handles).encode()).digest()
        mine = [uuid % 2**62, int.from_bytes(digest[:7], "little")]
        numbers = array("q", [*mine, *(-number for number in mine)])
        address, _ = numbers.buffer_info()
        communicator.run(ALL_REDUCE, address, address, 4, INT64, _MAX, 0, 0, limit)
        if numbers.tolist() != [*mine, *(-number for number in mine)]:
            what = "different numbers" if (numbers[0], -numbers[2]) != (mine[0], mine[0]) else "different handles"
            raise MismatchError(
                f"the ranks call reconfigure() with {what}: all ranks must pass the same uuid and the same handles",
                code="mismatch between ranks",
                scope="communicator",
            )
