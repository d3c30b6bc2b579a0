"""Base: the common part of all calls of a process group. Base runs a call at once, in the background, in a CUDA stream,
or as part of a batch."""

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
from .errors import for_torch, invalid
from .events import profiling, recorded
from .rendezvous import milliseconds
from .work import CudaWork, DoneWork, FutureThread, HostWork, KeptWorks, PollThread

# Whether the options of a call contain asyncOp, which is false if the caller waits for the call at once. True since
# torch 2.8. With older versions every call on host memory starts in the background.
SAYS_WHETHER_ASYNC = hasattr(c10d.AllreduceOptions(), "asyncOp")
_KEPT = 0 if SAYS_WHETHER_ASYNC else 1024  # how many works KeptWorks keeps

Tensors = List[torch.Tensor]
GRACE_S = 1.0  # when the group ends: seconds that receives without a message get before the group is aborted
DESTROYED = "this process group has been destroyed: make a new one"


class Batch:
    """Calls that start together: those between _start_coalescing() and _end_coalescing(), or the calls into which one
    call on many tensors is split."""

    def __init__(self) -> None:
        self.group = _core.Group()
        self.outputs: Tensors = []
        self.held: List[Any] = []
        self.finishes: List[Callable[[], None]] = []
        self.tensor: Optional[torch.Tensor] = None  # any of the tensors; all are on the same device. None: no call yet
        self.transfers = False  # whether the batch contains a send() or recv()
        self.sources: List[int] = []  # the source ranks of the recv() calls in the batch

    def add_buffers(self, tensor: torch.Tensor, outputs: Tensors, held: Any, finish: Optional[Callable[[], None]]) -> None:
        if self.tensor is not None and self.tensor.device != tensor.device:
            raise invalid(f"a batch takes tensors of one device, not {self.tensor.device} and {tensor.device}")
        self.tensor = tensor
        self.outputs.extend(outputs)
        self.held.append(held)
        if finish is not None:
            self.finishes.append(finish)

    def finish(self) -> None:
        for each in self.finishes:
            each()


class StreamErrors:
    """Reports failures of calls in CUDA streams that happened after the calls had returned. Each failure is reported
    once: by the Work of the call, or by check(). The communicator's async_status() raises and clears the first failure
    of any call; a Work gets the failure of its own call from its _core.Work."""

    def __init__(self, communicator: Optional[Any]):
        self._communicator = communicator  # None: the group has ended, and check() is not called any more
        self._unreported: Optional[Error] = None

    def mark_reported(self, error: Error) -> None:
        """Called when a Work reports `error`, so that the next check() does not report it again."""
        if self._unreported is not None and str(self._unreported) == str(error):
            self._unreported = None
        try:
            self._communicator.async_status()
        except Error as first:
            if str(first) != str(error):
                self._unreported = self._unreported or first

    def check(self) -> None:
        """Raises a failure that neither a Work nor check() has reported yet, if there is one."""
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            raise unreported
        self._communicator.async_status()


class Base:
    """One rank of a process group. Its functions may be called from any thread. If several threads make calls, the
    program must ensure that the order of the calls is the same on all ranks."""

    def __init__(self, rank: int, size: int, timeout: timedelta, global_ranks: Sequence[int]):
        """The group has no communicator until _use() is called."""
        self.communicator: Optional[Any] = None
        self._whole: Optional[Any] = None  # as self.communicator, but set until _end() has finished
        self._refuse_calls(DESTROYED)
        self._rank = rank
        self._size = size
        self._first_timeout = timeout
        self._global_ranks = list(global_ranks)
        # Converts an Error for torch. Not a bound method, because works store this function, and a bound
        # method would keep the group alive.
        self._convert_error: Callable[[Error], Exception] = functools.partial(for_torch, global_ranks=self._global_ranks)
        self._timeout_ms = 0  # 0: the communicator's timeout
        self._done = DoneWork()
        self._futures = FutureThread()
        self._transfer_futures = PollThread()
        self._in_progress: Dict[int, HostWork] = {}  # works in progress, by id(work); a work removes itself at its end
        self._kept = KeptWorks(_KEPT)
        self._lock = threading.Lock()
        self._batches: Dict[int, Batch] = {}  # open batches, by thread id
        # Receives are started while this lock is held, and counted in _received by source. A receive from any source
        # first finds a message and then starts. If the counter of the message's source has changed in between, another
        # receive may have taken the message.
        self._receiving = threading.RLock()
        self._received: Dict[int, int] = {}
        self._side_streams: Dict[torch.device, Any] = {}
        self._stream_errors = StreamErrors(None)
        self._sequence = 0

    def _use(self, communicator: Any) -> None:
        """Makes later calls with this communicator."""
        self._rank, self._size = communicator.rank, communicator.size
        self._received = {}
        self._sequence = 0
        self._stream_errors = StreamErrors(communicator)
        self._whole = communicator
        self._refusal = DESTROYED
        self._run = communicator.run
        self.communicator = communicator

    # ---- small things

    def _open(self) -> Any:
        """Returns the communicator. Raises InvalidArgumentError after destroy_process_group()."""
        communicator = self.communicator
        if communicator is None:
            raise invalid(self._refusal)
        return communicator

    def _refuse_calls(self, reason: str) -> None:
        """Sets the error of calls while there is no communicator."""
        self._refusal = reason
        # Not a bound method, because the group would refer to itself, and would live until the next garbage collection.
        self._run: Callable[..., None] = functools.partial(_refuse, reason)

    def _timeout_of(self, opts: Any) -> int:
        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout.days < 0:  # -1 ms is torch's value for "no timeout given"
            return self._timeout_ms
        return milliseconds(timeout) if timeout else self._timeout_ms

    def _waits(self, opts: Any) -> bool:
        return SAYS_WHETHER_ASYNC and opts is not None and not opts.asyncOp

    # ---- one call

    def _collective(
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
        """Makes one collective call, and returns its work. The buffers at the addresses `source` (input) and `target`
        (output) are on the device of `tensor`. `outputs` is the value of the work's future. `finish` runs after the
        call if it has succeeded; for CUDA memory as soon as it is queued, in the same stream. `held` is kept alive
        until then. `counts`: counts of input and output, then displacements of input and output; None: not a
        v-variant."""
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
            return self._track(communicator.start(*call), tensor, outputs, finish, held)
        except Error as error:
            raise self._convert_error(error) from None

    def _start_in(self, call: List[Any], stream: Any) -> Any:
        call[10] = stream.cuda_stream
        return self._open().start(*call)

    def _track(
        self,
        started: Any,
        tensor: torch.Tensor,
        outputs: Tensors,
        finish: Any,
        held: Any,
        transfers: bool = False,
        may_never_end: bool = False,
    ) -> HostWork:
        """Creates the HostWork of an operation on host memory that has started. The group keeps the work until the
        operation has ended, because the work keeps the operation's buffers alive."""
        in_progress = self._in_progress
        futures = self._transfer_futures if transfers else self._futures
        work = HostWork(started, outputs, self._convert_error, futures, finish, (tensor, held), in_progress, may_never_end)
        if in_progress:
            self._remove_some_ended()
        in_progress[id(work)] = work
        if _KEPT:
            work.kept = self._kept
            self._kept.append(work)
        return work

    def _remove_some_ended(self) -> None:
        """Removes works that have ended without a call of wait() from the table of works in progress. Each call checks
        the next two works in turn, so that one long operation does not keep the others in the table."""
        in_progress = self._in_progress
        with self._lock:
            for _ in range(2):
                try:
                    number = next(iter(in_progress))
                # StopIteration: the table is empty. RuntimeError: another thread has just changed it.
                except (StopIteration, RuntimeError):
                    return
                work = in_progress.get(number)
                if work is None or work.is_completed():
                    in_progress.pop(number, None)
                    continue
                in_progress.pop(number, None)
                in_progress[number] = work
                if work.has_ended():  # it ended, and removed itself, before it was put back into the table
                    in_progress.pop(number, None)

    # ---- CUDA streams

    def _side_stream(self, device: torch.device) -> Any:
        stream = self._side_streams.get(device)
        if stream is None:
            stream = self._side_streams[device] = torch.cuda.Stream(device)
        return stream

    def _in_stream(
        self, opts: Any, tensor: torch.Tensor, outputs: Tensors, finish: Any, held: Any, start: Callable[[Any], Any]
    ) -> Any:
        """Queues a call on CUDA memory: on the current stream if the caller waits for it at once, otherwise on the
        group's side stream. `start` queues the call on the stream that it is given, and returns its _core.Work."""
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
                # So that torch does not reuse the memory of the tensor before the side stream has completed the call.
                used.record_stream(stream)
        event = torch.cuda.Event()
        event.record(stream)
        work = CudaWork(started, event, stream, outputs, self._convert_error, self._stream_errors.mark_reported, self._futures)
        work.kept = self._kept
        self._kept.append(work)
        return work

    def _synchronize(self, device: torch.device) -> None:
        """Blocks until all work on the current stream of the device, and on the group's side stream, has completed."""
        if device.index is None:
            device = torch.device(device.type, torch.cuda.current_device())
        torch.cuda.current_stream(device).synchronize()
        beside = self._side_streams.get(device)
        if beside is not None:
            beside.synchronize()

    def _check_streams(self) -> None:
        try:
            self._open()
            self._stream_errors.check()
        except Error as error:
            raise self._convert_error(error) from None

    # ---- batches: each thread has its own open batch

    def _open_batch(self) -> Optional[Batch]:
        return self._batches.get(threading.get_ident()) if self._batches else None

    def _discard(self, batch: Batch) -> None:
        """Discards a batch of which no call has started, because a call could not be added to it."""
        if self._open_batch() is batch:
            self._batches.pop(threading.get_ident(), None)
        batch.group.drop()  # dropped explicitly, because the traceback of the error may keep the batch alive

    def _into_batch(
        self, batch: Batch, tensor: torch.Tensor, outputs: Tensors, finish: Any, held: Any, call: List[Any]
    ) -> Any:
        try:
            batch.add_buffers(tensor, outputs, (tensor, held), finish)
            if not tensor.is_cpu:
                call[10] = self._side_stream(tensor.device).cuda_stream
            batch.group.add(self._open(), *call)
        except Exception as error:
            self._discard(batch)
            raise (self._convert_error(error) if isinstance(error, Error) else error) from None
        return self._done

    def _launch(self, batch: Batch, waits: bool) -> Any:
        """Starts the calls of the batch, and returns their work. `waits`: the caller waits for it at once."""
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
            return self._track(
                started, tensor, batch.outputs, batch.finish, batch, batch.transfers, bool(batch.sources)
            )
        except Error as error:
            raise self._convert_error(error) from None

    def _start_batch(self, batch: Batch) -> Any:
        if not batch.sources:
            return batch.group.start()
        return self._calling(batch.sources, batch.group.start)

    def _calling(self, sources: Sequence[int], start: Callable[..., Any], *arguments: Any) -> Any:
        """Returns start(*arguments), which starts receives from the ranks `sources`, and counts these receives."""
        with self._receiving:
            try:
                return start(*arguments)
            # The counters change even if the start fails, because a receive from any source, which has read them
            # before, must notice that its message may have been taken.
            finally:
                for source in sources:
                    self._received[source] = self._received.get(source, 0) + 1

    def _together(self, opts: Any, function: Callable[[], None]) -> Any:
        """Runs `function`, and starts the calls that it makes together, as one batch. If this thread has an open batch,
        the calls are added to that batch instead."""
        if self._open_batch() is not None:
            function()
            return self._done
        batch = self._batches[threading.get_ident()] = Batch()
        try:
            function()
        except Exception:
            self._discard(batch)
            raise
        finally:
            self._batches.pop(threading.get_ident(), None)
        return self._launch(batch, self._waits(opts))

    def _start_coalescing(self, device: Optional[torch.device] = None) -> None:
        if self._open_batch() is not None:
            raise invalid("calls are being coalesced already: end that first")
        self._batches[threading.get_ident()] = Batch()

    def _end_coalescing(self, *arguments: Any) -> Any:
        """Starts the open batch, and returns its work. `arguments` is empty or the device. Before torch 2.1 it is the
        list of the works of the calls, for which torch then waits: each element is replaced by the work of the
        batch."""
        works = next((argument for argument in arguments if isinstance(argument, list)), None)
        batch = self._batches.pop(threading.get_ident(), None)
        if batch is None:
            if works is not None:
                return self._done  # a call in the `with` block has failed, and its error ends the block
            raise invalid("no calls are being coalesced")
        work = self._launch(batch, False)
        if works is not None:
            works[:] = [work] * len(works)
        return work

    # ---- the end

    def _unfinished(self, may_never_end: bool) -> List[HostWork]:
        """Returns the works in progress. If `may_never_end` is false, leaves out those that may never end: receives,
        batches with receives, and messages of this rank to itself."""
        works = list(self._in_progress.values())
        return [work for work in works if (may_never_end or not work.may_never_end) and not work.is_completed()]

    def _wait_or_abort(self, patience_s: Optional[float]) -> None:
        """Waits at most `patience_s` seconds for the works in progress (None: without a limit). After the others have
        ended, waits at most GRACE_S seconds for the works that may never end (see _unfinished()). If some works have
        not ended then, aborts the group."""
        limit = float("inf") if patience_s is None else time.monotonic() + patience_s
        pause = 1e-4
        while self._unfinished(False) and time.monotonic() < limit:
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        self._end_self_messages()  # they would not end by themselves, because only this rank could complete them
        limit = min(limit, time.monotonic() + GRACE_S)
        while self._unfinished(True):
            if time.monotonic() >= limit:
                self._abort()
                return
            time.sleep(5e-3)

    def _end_self_messages(self) -> None:
        """Ends the pending messages of this rank to itself. Does nothing here; Transfers overrides it."""

    def _abort(self) -> None:
        self._end_self_messages()
        whole = self._whole
        if whole is not None:
            whole.abort()

    def _end(self) -> None:
        """Refuses further calls, waits for the operations in progress, and leaves the communicator."""
        with self._lock:  # a reconfiguration may end the group at the same time
            communicator, self.communicator = self.communicator, None
        if communicator is None:
            return
        self._refuse_calls(self._refusal)
        self._kept.clear()
        self._wait_or_abort(None)
        try:
            communicator.finalize()
        except Error:
            pass  # the communicator had failed before, and the call that failed has already reported this
        self._unfinished(True)  # works that have ended remove themselves when they are asked
        self._futures.stop()
        self._transfer_futures.stop()
        self._whole = None
        self._stream_errors = StreamErrors(None)


def _refuse(reason: str, *arguments: Any, **named: Any) -> None:
    raise invalid(reason)


def _tensors_in(held: Any) -> Tensors:
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, (list, tuple)):
        return [tensor for part in held for tensor in _tensors_in(part)]
    return []
