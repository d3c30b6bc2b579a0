"""ProcessGroupTutti: the process group of backend "tutti". It is a subclass of torch's ProcessGroup, written in Python,
so that one build works with all supported versions of torch.

torch's C++ code (DDP's reducer, functional collectives) calls its methods through pybind11's trampolines, and torch's
Python code calls them directly. One object is used for host and CUDA tensors.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import sys
import time
import weakref
from datetime import timedelta
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..errors import Error
from .dynamo import leave_alone
from .errors import for_torch, invalid
from .reconfigure import Reconfigurable
from .rendezvous import Options, connect, join, milliseconds, outward_interface

_LAST_WAIT_S = 5.0  # seconds that calls in progress get when the interpreter exits
_alive: "weakref.WeakSet[ProcessGroupTutti]" = weakref.WeakSet()


class ProcessGroupTutti(Reconfigurable, dist.ProcessGroup):  # type: ignore[misc]
    """A communicator of Tutti as a ProcessGroup of torch. Created by init_process_group() and new_group().

    Errors: tutti's exceptions. All except InvalidArgumentError are also torch.distributed.DistBackendError. After an
    InvalidArgumentError nothing has been sent, and the group stays as it was. There are two exceptions. If the error
    names a rank, the buffer of that rank could not be accessed during the call. And the root of a scatter with a wrong
    list tells the other ranks. Messages name ranks by their numbers in this group; if the global
    rank of the rank that caused the failure differs, it is stated as well.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Optional[Options] = None,
        global_ranks: Sequence[int] = (),
        enable_reconfigure: bool = False,
    ):
        """`enable_reconfigure`: the group gets its communicator by reconfigure(), and has none before."""
        if options is not None and not isinstance(options, Options):
            raise invalid(f"pg_options of backend tutti is a tutti.torch.Options, not a {type(options).__name__}")
        try:
            dist.ProcessGroup.__init__(self, store, rank, size)
        except TypeError:  # older releases of torch, whose constructor takes no store
            dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg, arg-type]
        # A copy of the caller's options, because torch stores attributes of the group in this object.
        self.options = dataclasses.replace(options) if options is not None else Options()
        self.options._timeout = timeout
        self._name = ""
        self._identity = ""
        self._description = "undefined"
        Reconfigurable.__init__(self, rank, size, timeout, global_ranks)
        self._prepare_transfers()
        self._prepare_reconfiguration(
            functools.partial(connect, options=self.options), functools.partial(outward_interface, store, self.options)
        )
        if enable_reconfigure:
            self._refuse_calls("this process group was made with enable_reconfigure: call reconfigure() first")
        else:
            try:
                communicator, self._identity = join(
                    store, rank, size, timeout, self.options, global_ranks, _identity_of_world()
                )
                self._use(communicator)
            except Error as error:
                raise for_torch(error, global_ranks) from None
        _alive.add(self)

    # ---- attributes of a group that torch reads

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return "tutti"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, desc: str) -> None:
        self._description = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName, setGroupName)
    group_desc = property(getGroupDesc, setGroupDesc)

    @property
    def _device_types(self) -> List[torch.device]:
        cpu = torch.device("cpu")
        return [cpu, torch.device("cuda")] if torch.cuda.is_available() else [cpu]

    def _get_backend(self, device: torch.device) -> "ProcessGroupTutti":  # type: ignore[override]
        """Returns the group itself for every device, because this class is both process group and backend."""
        self.supports_coalescing = torch.device(device).type == "cuda"
        return self

    def _get_backend_name(self) -> str:
        return "tutti"

    # batch_isend_irecv() of torch 2.14 reads this attribute of _get_backend(device). Operations on host memory are then
    # started one by one, as by older versions, and each has a Work of its own, for which torch's pipeline schedules
    # wait. Operations on CUDA memory are a batch, because a rank that sends first and a rank that receives first could
    # otherwise wait for each other in their streams.
    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = False

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later sends and receives, and of later collectives that pass none of their own: how long
        a call may make no progress before it fails."""
        self._timeout_ms = milliseconds(timeout)
        self.options._timeout = timeout

    set_timeout = _set_default_timeout

    def eager_connect_single_device(self, device: Optional[torch.device] = None) -> None:
        """Does nothing, because the ranks have already been connected when the group was created."""

    # ---- the end

    def shutdown(self) -> None:
        """Waits for the calls in progress, then leaves the group. destroy_process_group() calls this function.

        Local call, with one exception: if a receive gets no message within GRACE_S (base.py) after all other calls
        have ended, the group is aborted on all ranks, so that the receive ends with an error.
        """
        _alive.discard(self)
        with self._lock:
            self._destroyed = True
        self._drop_handle()
        self._end()
        if self._any_source is not None:
            self._any_source.stop()

    # Needed because before torch 2.0, destroy_process_group() does not call shutdown() but only destroys the object.
    # sys.is_finalizing is a default argument, because at the exit of the interpreter the names of this module may
    # already be None.
    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if getattr(self, "communicator", None) is not None and is_finalizing is not None and not is_finalizing():
            self.shutdown()

    def abort(self) -> None:
        """Ends every call in progress with an error, on all ranks. Later calls fail as well. May be called from any
        thread."""
        with self._lock:
            self._cancelled = True
        self._abort()


def _identity_of_world() -> str:
    """The identity of the default group; empty if there is none yet, or if it is not a group of this backend."""
    world = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
    return world._identity if isinstance(world, ProcessGroupTutti) else ""


def _at_exit() -> None:
    """Waits at most _LAST_WAIT_S seconds for the calls in progress of all groups, and a shorter time for receives that
    are the only ones left (GRACE_S in base.py). Then aborts each group whose calls have not ended, because their
    threads must not return to an interpreter that has ended."""
    deadline = time.monotonic() + _LAST_WAIT_S
    for group in list(_alive):
        try:
            if group.communicator is not None:
                group._wait_or_abort(max(0.0, deadline - time.monotonic()))
            group._futures.stop()
            group._transfer_futures.stop()
        except Exception:  # ignored, because the process is exiting, and an error cannot be reported any more
            pass


atexit.register(_at_exit)
leave_alone(module for name, module in list(sys.modules.items()) if name.startswith("tutti."))
