"""Works: the handles of calls in progress for torch, and the threads that complete their futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
from torch.futures import Future

from ..errors import DeadlineError, Error

Finish = Callable[[], None]
# Converts an Error to an exception for torch. Each Work gets this function from its group.
ErrorConverter = Callable[[Error], Exception]
# Pauses of PollThread between two checks of its works.
_SHORTEST_PAUSE_S = 1e-5
_LONGEST_PAUSE_S = 2e-3
_making_future = threading.Lock()  # shared by all works, because it is held only for a short time


class DoneWork(dist.Work):
    """The work of a call that has succeeded before it returned. One object is used for all such calls of a group."""

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> List[torch.Tensor]:
        return []

    def synchronize(self) -> None:
        return None

    def get_future(self) -> Future:
        future: Future = Future()
        future.set_result([])
        return future


class EndedWork(DoneWork):
    """A DoneWork with outputs."""

    def __init__(self, tensors: List[torch.Tensor]):
        super().__init__()
        self._tensors = tensors

    def result(self) -> List[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Future:
        future: Future = Future()
        future.set_result(self._tensors)
        return future


class FutureThread:
    """Waits for works in the order of their calls and completes their futures. The thread starts when it is first
    needed.

    Used for collectives, because the collectives of a group end in the order of their calls."""

    def __init__(self) -> None:
        self._works: "queue.SimpleQueue[Any]" = queue.SimpleQueue()  # HostWork or CudaWork; None ends the thread
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def add(self, work: Any) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tutti futures", daemon=True)
                    self._thread.start()
        self._works.put(work)

    def would_wait_for_itself(self) -> bool:
        """Whether the caller is a callback in this thread. The thread would then wait for itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Ends the thread after all its works have ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._works.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            work = self._works.get()
            if work is None:
                return
            work.complete()
            del work  # otherwise its tensors would stay alive until the next work


class PollThread(FutureThread):
    """Like FutureThread, but for sends and receives, which end in any order, or never."""

    def would_wait_for_itself(self) -> bool:
        return False  # a callback may request the future of the next message, and must not wait for that message

    def _run(self) -> None:
        pending: List[HostWork] = []
        pause = _SHORTEST_PAUSE_S
        while True:
            try:
                work = self._works.get(timeout=pause) if pending else self._works.get()
            except queue.Empty:
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                if work is None:
                    break
                pending.append(work)
                pause = _SHORTEST_PAUSE_S
            work = None  # otherwise its tensors would stay alive until the next work
            ended: List[HostWork] = []
            for _ in range(len(pending)):  # check each work once, because it may end between two checks
                pending.append(pending.pop(0))
                if pending[-1].is_completed():
                    ended.append(pending.pop())
            if ended:
                pause = _SHORTEST_PAUSE_S
            while ended:
                ended.pop(0).complete()
        for each in pending:
            each.complete()


class KeptWorks:
    """Keeps the last `limit` works for which wait() has not been called. Before torch 2.8, torch's C++ code does not
    keep the Python part of a Work alive, and without it a wait never ends."""

    def __init__(self, limit: int):
        self._limit = limit
        self._works: Dict[int, Any] = {}

    def append(self, work: Any) -> None:
        if self._limit:
            self._works[id(work)] = work
            while len(self._works) > self._limit:
                self._works.pop(next(iter(self._works)), None)

    def drop(self, work: Any) -> None:
        self._works.pop(id(work), None)

    def clear(self) -> None:
        self._works.clear()


class HostWork(dist.Work):
    """A call on host memory that runs in the background.

    Keeps the tensors alive until the call has ended. May be used from any thread. The value of its future is the
    outputs. A failure is raised in the Python or C++ code that waits for the work, with Tutti's message.
    """

    def __init__(
        self,
        started: Any,
        tensors: List[torch.Tensor],
        convert_error: ErrorConverter,
        thread: FutureThread,
        finish: Optional[Finish] = None,
        held: Any = None,
        in_progress: Optional[Dict[int, "HostWork"]] = None,
        may_never_end: bool = False,
    ):
        super().__init__()
        self._started = started  # a _core.Work, or another object with wait() and test()
        self._tensors = tensors
        self._convert_error = convert_error
        self._thread = thread
        self._finish = finish  # copies results from a temporary buffer to the outputs; runs once
        self._held = held  # other buffers of the call
        self.kept: Optional[KeptWorks] = None  # the table that keeps this work until its end has been reported
        self._in_progress = in_progress  # the table that keeps this work until the call has ended
        self.may_never_end = may_never_end  # a receive, which may never end
        self.source = -1  # for a receive: the source rank; valid after its end if the source was any rank
        self._lock = threading.Lock()
        self._ended = False
        self._error: Optional[Exception] = None
        self._end_future: Optional[Future] = None  # completed at the end of the call, before wait() returns
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        if not self._ended:
            if timeout is not None and timeout > timedelta(0):
                self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
            else:  # this must not wait for the thread of futures, which may be in a callback that waits for this work
                self._end()
        if self.kept is not None:
            self.kept.drop(self)
        if self._error is not None:
            raise self._error
        return True

    def _wait_until(self, deadline: float, timeout: timedelta) -> None:
        pause = 1e-5
        while not self.is_completed():
            if time.monotonic() > deadline:
                words = f"the call has not ended within {timeout.total_seconds():g} s; it continues"
                raise self._convert_error(DeadlineError(words, code="timeout"))
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def _end(self) -> None:
        """Waits for the call and runs `finish`. May be called by several threads at the same time."""
        with self._lock:
            if self._ended:
                return
            try:
                self._started.wait()
                if self._finish is not None:
                    self._finish()
            except Error as error:
                self._error = self._convert_error(error)
            except Exception as error:
                self._error = error
            self._started = self._finish = self._held = None
            end_future, self._end_future = self._end_future, None
            if end_future is not None:
                end_future.set_result(None)
            self._ended = True
            if self._in_progress is not None:
                self._in_progress.pop(id(self), None)

    def is_completed(self) -> bool:
        if self._ended:
            return True
        if not self._lock.acquire(blocking=False):
            return False  # another thread is waiting for the call
        try:
            over = self._ended or self._started.test()
        except Error:
            over = True  # _end() gets the error again
        finally:
            self._lock.release()
        if over:
            self._end()
        return over

    def set_end_future(self, end_future: Future) -> None:
        with self._lock:
            if not self._ended:
                self._end_future = end_future
                return
        end_future.set_result(None)

    def has_ended(self) -> bool:
        """Whether the end is known already. Unlike is_completed(), it does not check the call."""
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        return self._error

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        if self._future is None and self._thread.would_wait_for_itself():
            self._end()
        with _making_future:
            if self._future is not None:
                return self._future
            ready: Future = Future()
            # The error is raised in a callback, because C++ code does not see an error that set_exception() stores.
            self._future = future = ready.then(self._value)
            ended = self._ended
            self._ready = ready
        if ended:
            self.complete()
        else:
            self._thread.add(self)
        return future

    def _value(self, ready: Future) -> List[torch.Tensor]:
        if self.kept is not None:
            self.kept.drop(self)
        if self._error is not None:
            raise self._error
        return self._tensors

    def complete(self) -> None:
        """Waits for the end of the work and completes the future, which runs its callbacks."""
        self._end()
        ready, self._ready = self._ready, None
        assert ready is not None
        ready.set_result(None)


class CudaWork(dist.Work):
    """A call that is queued on a CUDA stream. It has ended when the stream has reached `event` and its C++ Work has
    ended.

    May be used from any thread. The thread of futures completes its future after the call has ended, so that the future
    can report a failure.
    """

    def __init__(
        self,
        started: Any,
        event: Any,
        stream: Any,
        tensors: List[torch.Tensor],
        convert_error: ErrorConverter,
        mark_reported: Callable[[Error], None],
        thread: FutureThread,
    ):
        super().__init__()
        self._started = started  # a _core.Work; None after its end is known
        self._event = event
        self._stream = stream
        self._tensors = tensors
        self._convert_error = convert_error
        self._mark_reported = mark_reported  # a function of the group; called once, when a failure of the call is reported
        self._unreported: Optional[Error] = None
        self._thread = thread
        self.kept: Optional[KeptWorks] = None
        self._lock = threading.Lock()
        self._error: Optional[Exception] = None
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def _ended(self) -> bool:
        """Whether the call has ended. After that a failure is known."""
        with self._lock:
            started = self._started
            if started is not None and started.test():
                self._learn(started)
            return self._started is None

    def _learn(self, started: Any) -> None:
        """Stores the result of the call. Called with the lock held."""
        try:
            started.wait()
        except Error as error:
            self._error, self._unreported = self._convert_error(error), error
        self._started = None

    def _failure(self) -> Optional[Exception]:
        """Returns the failure of the call if it is known, and marks it as reported."""
        self._ended()
        with self._lock:
            unreported, self._unreported = self._unreported, None
        if unreported is not None:
            self._mark_reported(unreported)
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Makes the current stream wait for the call; the host does not block. Raises a failure that is already
        known."""
        error = self._failure()
        if self.kept is not None:
            self.kept.drop(self)
        if error is not None:
            raise error
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event.query() and self._ended()

    def is_success(self) -> bool:
        return self.is_completed() and self._failure() is None

    def exception(self) -> Optional[Exception]:
        return self._failure()

    def result(self) -> List[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future:
        with _making_future:
            if self._future is not None:
                return self._future
            self._ready = Future(devices=[self._stream.device])
            self._future = future = self._ready.then(self._value)
        if self._ended() or self._thread.would_wait_for_itself():
            self.complete()
        else:
            self._thread.add(self)
        return future

    def _value(self, ready: Future) -> List[torch.Tensor]:
        error = self._failure()
        if self.kept is not None:
            self.kept.drop(self)
        if error is not None:
            raise error
        return self._tensors

    def complete(self) -> None:
        """Waits for the call and completes the future, which runs its callbacks."""
        while not self._ended():
            started = self._started
            if started is not None:
                with contextlib.suppress(Error):  # _ended() gets the error again
                    started.wait()
        ready, self._ready = self._ready, None
        assert ready is not None
        with torch.cuda.stream(self._stream):
            ready.set_result(self._tensors)
