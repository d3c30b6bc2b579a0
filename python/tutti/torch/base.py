"""What the calls of a process group share: running them now, in the background, in a CUDA stream or in a batch."""

from __future__ import annotations

import functools
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch._C import _distributed_c10d as c10d

from .. import _core
from ..errors import Error
from .errors import for_torch, refused
from .events import profiling, recorded
from .rendezvous import milliseconds
from .work import CudaWork, DoneWork, FutureThread, HostWork, Kept, PollThread

# torch 2.8 and later say whether the caller waits at once; before that every call starts in the background.
SAYS_WHETHER_ASYNC = hasattr(c10d.AllreduceOptions(), "asyncOp")
_KEPT = 0 if SAYS_WHETHER_ASYNC else 1024

Tensors = List[torch.Tensor]
_GRACE_S = 1.0  # for receives that nobody has sent to, when the group ends
_DESTROYED = "this process group has been destroyed: make a new one"


class Batch:
    """Calls that start as one: between _start_coalescing() and _end_coalescing(), or one call's on many tensors."""

    def __init__(self) -> None:
        self.group = _core.Group()
        self.outputs: Tensors = []
        self.held: List[Any] = []
        self.finishes: List[Callable[[], None]] = []
        self.tensor: Optional[torch.Tensor] = None  # one of them: where they lie
        self.transfers = False  # holds sends or receives that the user has named
        self.sources: List[int] = []  # of receives that the user has named

    def note(self, tensor: torch.Tensor, outputs: Tensors, held: Any, finish: Optional[Callable[[], None]]) -> None:
        if self.tensor is not None and self.tensor.device != tensor.device:
            raise refused(f"a batch takes tensors of one device, not {self.tensor.device} and {tensor.device}")
        self.tensor = tensor
        self.outputs.extend(outputs)
        self.held.append(held)
        if finish is not None:
            self.finishes.append(finish)

    def finish(self) -> None:
        for each in self.finishes:
            each()


class Late:
    """Failures of calls in streams that became known when the calls had returned. The communicator keeps the first one
    since it was asked, whosever it is; a Work asks its own handle."""

    def __init__(self, communicator: Optional[Any]):
        self._communicator = communicator  # None: the group has ended, and asks no more
        self._unheard: Optional[Error] = None

    def heard(self, error: Error) -> None:
        """A Work tells this one, so the next check() need not."""
        if self._unheard is not None and str(self._unheard) == str(error):
            self._unheard = None
        try:
            self._communicator.async_status()
        except Error as first:
            if str(first) != str(error):
                self._unheard = self._unheard or first

    def check(self) -> None:
        """Raises what no Work has told."""
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            raise unheard
        self._communicator.async_status()


class Base:
    """One rank of one group. Any thread may call; calls of several threads need an order that all ranks share."""

    def __init__(self, communicator: Any, timeout: timedelta, global_ranks: Sequence[int]):
        self.communicator: Optional[Any] = communicator
        self._whole: Optional[Any] = communicator  # also while it ends
        self._run = communicator.run
        self._rank: int = communicator.rank
        self._size: int = communicator.size
        self._global_ranks = list(global_ranks)
        # Not a method: works hold it, and a group must go with its last user.
        self._tell: Callable[[Error], Exception] = functools.partial(for_torch, global_ranks=self._global_ranks)
        self._timeout_ms = 0  # the communicator's own
        self._done = DoneWork()
        self._futures = FutureThread()
        self._transfer_futures = PollThread()
        self._under_way: Dict[int, HostWork] = {}  # by id(); works take themselves out
        self._kept = Kept(_KEPT)
        self._lock = threading.Lock()
        self._batches: Dict[int, Batch] = {}  # that are open, by thread
        # Receives are called with the lock, then counted by their source: one from any source sees by that whether the
        # message that it has found was taken.
        self._receiving = threading.RLock()
        self._received: Dict[int, int] = {}
        self._side_streams: Dict[torch.device, Any] = {}
        self._late = Late(communicator)
        self._sequence = 0

    # ---- small things

    def _open(self) -> Any:
        """The communicator. InvalidArgumentError after destroy_process_group()."""
        communicator = self.communicator
        if communicator is None:
            raise refused(_DESTROYED)
        return communicator

    def _timeout_of(self, opts: Any) -> int:
        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout.days < 0:  # torch's word for none is -1 ms
            return self._timeout_ms
        return milliseconds(timeout) if timeout else self._timeout_ms

    def _waits(self, opts: Any) -> bool:
        return SAYS_WHETHER_ASYNC and opts is not None and not opts.asyncOp

    # ---- one call

    def _go(
        self,
        opts: Any,
        tensor: torch.Tensor,
        outputs: Tensors,
        kind: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        op: int = 0,
        root: int = 0,
        scale: Any = None,
        reduction: int = 0,
        counts: Sequence[Optional[List[int]]] = (None, None, None, None),
        finish: Optional[Callable[[], None]] = None,
        held: Any = None,
    ) -> Any:
        """Carries out one collective. `tensor` says where the buffers at `source` and `target` lie, `outputs` is the
        value of the future, `finish` runs after the call, `held` lives until then. `counts`: of input and output, then
        their displacements."""
        limit = self._timeout_of(opts)
        call = [kind, source, target, count, dtype, op, root, 0, limit, scale, None, *counts, reduction]
        batch = self._open_batch()
        if batch is not None:
            return self._into_batch(batch, tensor, outputs, finish, held, call)
        if profiling():
            return recorded(kind, lambda: self._begin(opts, tensor, outputs, finish, held, call))
        return self._begin(opts, tensor, outputs, finish, held, call)

    def _begin(
        self, opts: Any, tensor: torch.Tensor, outputs: Tensors, finish: Any, held: Any, call: List[Any]
    ) -> Any:
        communicator = self._open()
        self._sequence += 1
        try:
            if not tensor.is_cpu:
                return self._in_stream(opts, tensor, outputs, finish, held, lambda stream: self._start_in(call, stream))
            if self._waits(opts):
                self._run(*call)
                if finish is not None:
                    finish()
                return self._done
            return self._under(communicator.start(*call), tensor, outputs, finish, held)
        except Error as error:
            raise self._tell(error) from None

    def _start_in(self, call: List[Any], stream: Any) -> Any:
        call[10] = stream.cuda_stream
        return self._open().start(*call)

    def _under(
        self,
        started: Any,
        tensor: torch.Tensor,
        outputs: Tensors,
        finish: Any,
        held: Any,
        transfers: bool = False,
        may_stay: bool = False,
    ) -> HostWork:
        """A Work of what has started. The group holds it as long as it runs: its buffers must live."""
        under_way = self._under_way
        futures = self._transfer_futures if transfers else self._futures
        work = HostWork(started, outputs, self._tell, futures, finish, (tensor, held), under_way, may_stay)
        if under_way:
            self._look_at_some()
        under_way[id(work)] = work
        if _KEPT:
            work.kept = self._kept
            self._kept.append(work)
        return work

    def _look_at_some(self) -> None:
        """Lets works go that nobody waits for. Two for each new one, in turn: then a long one keeps no others."""
        under_way = self._under_way
        with self._lock:
            for _ in range(2):
                try:
                    number = next(iter(under_way))
                except (StopIteration, RuntimeError):  # the last one has gone; or one just now, in another thread
                    return
                work = under_way.get(number)
                if work is None or work.is_completed():
                    under_way.pop(number, None)
                    continue
                under_way.pop(number, None)
                under_way[number] = work
                if work.has_ended():  # meanwhile, in another thread
                    under_way.pop(number, None)

    # ---- CUDA streams

    def _side_stream(self, device: torch.device) -> Any:
        stream = self._side_streams.get(device)
        if stream is None:
            stream = self._side_streams[device] = torch.cuda.Stream(device)
        return stream

    def _in_stream(
        self, opts: Any, tensor: torch.Tensor, outputs: Tensors, finish: Any, held: Any, start: Callable[[Any], Any]
    ) -> Any:
        """Puts a call into the current stream, or, if nobody waits for it at once, into one beside it. `start` does so
        and gives its _core.Work."""
        current = torch.cuda.current_stream(tensor.device)
        stream = current
        if not self._waits(opts):
            stream = self._side_stream(tensor.device)
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            started = start(stream)
            if finish is not None:
                finish()
        if stream is current:
            self._check_streams()
            return self._done
        for used in _tensors_in((tensor, outputs, held)):
            if used.is_cuda:
                used.record_stream(stream)  # else its memory could be given away before the stream is through
        event = torch.cuda.Event()
        event.record(stream)
        work = CudaWork(started, event, stream, outputs, self._tell, self._late.heard, self._futures)
        work.kept = self._kept
        self._kept.append(work)
        return work

    def _synchronize(self, device: torch.device) -> None:
        """Waits for what has been put into the current stream of the device and into the one beside it."""
        if device.index is None:
            device = torch.device(device.type, torch.cuda.current_device())
        torch.cuda.current_stream(device).synchronize()
        beside = self._side_streams.get(device)
        if beside is not None:
            beside.synchronize()

    def _check_streams(self) -> None:
        try:
            self._open()
            self._late.check()
        except Error as error:
            raise self._tell(error) from None

    # ---- batches: a thread's calls go into its own

    def _open_batch(self) -> Optional[Batch]:
        return self._batches.get(threading.get_ident()) if self._batches else None

    def _forget(self, batch: Batch) -> None:
        """A call that was to go into it has failed: nothing of it has been sent, and nothing will be."""
        if self._open_batch() is batch:
            self._batches.pop(threading.get_ident(), None)
        batch.group.drop()  # now: the error's traceback may keep the batch

    def _into_batch(
        self, batch: Batch, tensor: torch.Tensor, outputs: Tensors, finish: Any, held: Any, call: List[Any]
    ) -> Any:
        try:
            batch.note(tensor, outputs, (tensor, held), finish)
            if not tensor.is_cpu:
                call[10] = self._side_stream(tensor.device).cuda_stream
            batch.group.add(self._open(), *call)
        except Exception as error:
            self._forget(batch)
            raise (self._tell(error) if isinstance(error, Error) else error) from None
        return self._done

    def _launch(self, batch: Batch, waits: bool) -> Any:
        """Starts what the batch holds. `waits`: the caller would wait at once."""
        tensor = batch.tensor
        if tensor is None:
            return self._done
        if profiling():
            return recorded("batch", lambda: self._begin_batch(batch, tensor, waits))
        return self._begin_batch(batch, tensor, waits)

    def _begin_batch(self, batch: Batch, tensor: torch.Tensor, waits: bool) -> Any:
        self._open()
        self._sequence += 1
        try:
            if not tensor.is_cpu:
                return self._in_stream(
                    None, tensor, batch.outputs, batch.finish, batch.held, lambda stream: self._start_batch(batch)
                )
            if waits:
                batch.group.run()
                batch.finish()
                return self._done
            started = self._start_batch(batch)
            return self._under(
                started, tensor, batch.outputs, batch.finish, batch, batch.transfers, bool(batch.sources)
            )
        except Error as error:
            raise self._tell(error) from None

    def _start_batch(self, batch: Batch) -> Any:
        if not batch.sources:
            return batch.group.start()
        return self._calling(batch.sources, batch.group.start)

    def _calling(self, sources: Sequence[int], start: Callable[..., Any], *arguments: Any) -> Any:
        """start(*arguments), which calls receives from these ranks."""
        with self._receiving:
            try:
                return start(*arguments)
            finally:  # not ahead of it: who has read the numbers before it began must see another one
                for source in sources:
                    self._received[source] = self._received.get(source, 0) + 1

    def _together(self, opts: Any, function: Callable[[], None]) -> Any:
        """What `function` calls, as one: in a batch of its own, or in the one that is open."""
        if self._open_batch() is not None:
            function()
            return self._done
        batch = self._batches[threading.get_ident()] = Batch()
        try:
            function()
        except Exception:
            self._forget(batch)
            raise
        finally:
            self._batches.pop(threading.get_ident(), None)
        return self._launch(batch, self._waits(opts))

    def _start_coalescing(self, device: Optional[torch.device] = None) -> None:
        if self._open_batch() is not None:
            raise refused("calls are being coalesced already: end that first")
        self._batches[threading.get_ident()] = Batch()

    def _end_coalescing(self, *arguments: Any) -> Any:
        """`arguments`: nothing, the device, or before torch 2.1 the works of the calls, which then become that of all
        of them: those torch waits for."""
        works = next((argument for argument in arguments if isinstance(argument, list)), None)
        batch = self._batches.pop(threading.get_ident(), None)
        if batch is None:
            if works is not None:
                return self._done  # the end of a `with` that a call has failed in: that error goes on
            raise refused("no calls are being coalesced")
        work = self._launch(batch, False)
        if works is not None:
            works[:] = [work] * len(works)
        return work

    # ---- the end

    def _unfinished(self, may_stay: bool) -> List[HostWork]:
        """The works under way; without `may_stay`, those that end by themselves: a receive may wait for ever."""
        works = list(self._under_way.values())
        return [work for work in works if (may_stay or not work.may_stay) and not work.is_completed()]

    def _settle(self, patience_s: Optional[float]) -> None:
        """Waits for the works under way, at most `patience_s`, and for receives a moment only, then aborts."""
        limit = float("inf") if patience_s is None else time.monotonic() + patience_s
        pause = 1e-4
        while self._unfinished(False) and time.monotonic() < limit:
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        self._end_own()  # nobody else can
        limit = min(limit, time.monotonic() + _GRACE_S)
        while self._unfinished(True):
            if time.monotonic() >= limit:
                self._abort()
                return
            time.sleep(5e-3)

    def _end_own(self) -> None:
        """Ends what this rank has left of messages to itself."""

    def _abort(self) -> None:
        self._end_own()
        whole = self._whole
        if whole is not None:
            whole.abort()

    def _end(self) -> None:
        """Waits for what is under way, then leaves. The group takes no calls afterwards."""
        communicator, self.communicator = self.communicator, None
        if communicator is None:
            return
        self._run = _refuse
        self._kept.clear()
        self._settle(None)
        try:
            communicator.finalize()
        except Error:
            pass  # it is broken; the calls that found that have told it
        self._unfinished(True)
        self._futures.stop()
        self._transfer_futures.stop()
        self._whole = None
        self._late = Late(None)


def _refuse(*arguments: Any) -> None:
    raise refused(_DESTROYED)


def _tensors_in(held: Any) -> Tensors:
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, (list, tuple)):
        return [tensor for part in held for tensor in _tensors_in(part)]
    return []
