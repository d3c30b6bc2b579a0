"""Works: torch's handles of calls in progress, and the threads that complete the works' futures."""

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
# The type of a function that converts an Error to an exception for torch. Each Work gets such a function from its
# group.
ErrorConverter = Callable[[Error], Exception]
# The shortest and the longest pause of PollThread between two checks of its works, in seconds.
_SHORTEST_PAUSE_S = 1e-5
_LONGEST_PAUSE_S = 2e-3
_making_future = threading.Lock()  # held while a work creates its future; one lock is enough, because that is short


class DoneWork(dist.Work):
    """The work of a call for which nothing is left to wait: it has succeeded before it returned, it is queued on the
    caller's current CUDA stream, or it was added to a batch. One object is used for all such calls of a group."""

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
    """As DoneWork, for one call, with the call's output tensors as its result and the value of its future."""

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
    """A thread that waits for works in the order in which their futures were requested, and completes these futures. It
    starts when the first future is requested.

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
        """Whether the caller runs in this thread, as a callback of a future. If it waited for another future of this
        thread, the thread would wait for itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Ends the thread after it has completed the futures of all works that were added. Waits for its end, unless
        the caller is this thread."""
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
            del work  # otherwise the work's tensors would stay alive until the next work is added


class PollThread(FutureThread):
    """Like FutureThread, but for sends and receives, which end in any order, or never. So it polls all works in
    turn."""

    def would_wait_for_itself(self) -> bool:
        # False even in a callback: the callback may request the future of a message that arrives later, and
        # get_future() must then not wait for the message.
        return False

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
            work = None  # otherwise the work's tensors would stay alive until the next work is added
            ended: List[HostWork] = []
            for _ in range(len(pending)):  # checks each work exactly once, because it may end between two checks
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
    """Keeps the last `limit` works for which wait() has not been called (limit 0: none). Needed because before torch
    2.8, torch's C++ code does not keep the Python part of a Work alive, and a wait for a Work without it never ends."""

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

    Keeps the tensors of the call alive until the call has ended. May be used from any thread. The value of its future
    is the list of output tensors. A failure of the call is raised in the Python or C++ code that waits for the work,
    with Tutti's message.
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
        self._finish = finish  # runs once after a successful call, for example to copy results from a buffer; or None
        self._held = held  # other objects that must live until the call has ended, such as buffers
        self.kept: Optional[KeptWorks] = None  # the table that keeps this work until its end has been reported
        self._in_progress = in_progress  # the table that keeps this work until the call has ended
        self.may_never_end = may_never_end  # whether the call waits for a message that may never arrive
        self.source = -1  # of a send or receive: the other rank; for a receive from any source -1 until it has started
        self._lock = threading.Lock()
        self._ended = False
        self._error: Optional[Exception] = None
        # For the profiler: completed when the call has ended, before wait() returns.
        self._end_future: Optional[Future] = None
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        if not self._ended:
            if timeout is not None and timeout > timedelta(0):
                self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
            else:  # waits directly and not for the FutureThread, which may be in a callback that waits for this work
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
        """Waits until the call has ended, and then runs `finish` or, if the call has failed, stores the error. May be
        called by several threads at the same time; only the first call has an effect, and the others wait for it."""
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
            return False  # another thread holds the lock in _end(), because it is waiting for the call
        try:
            over = self._ended or self._started.test()
        except Error:
            over = True  # _end() gets the error again from wait(), and stores it
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
        """Whether a wait or check has already found that the call has ended. Unlike is_completed(), makes no new
        check."""
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
            # The error of the call is raised in the callback _value(), because C++ code does not see an error that
            # set_exception() stores in a future.
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
        """Waits until the call has ended, and completes the future, which runs the future's callbacks."""
        self._end()
        ready, self._ready = self._ready, None
        assert ready is not None
        ready.set_result(None)


class CudaWork(dist.Work):
    """A call that is queued on the group's side stream. The call has ended when the stream has reached `event` and the
    call's _core.Work has ended.

    May be used from any thread. A FutureThread completes the future of this work after the call has ended, so that the
    future can report a failure.
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
        self._started = started  # a _core.Work; None after it is known to have ended
        self._event = event
        self._stream = stream
        self._tensors = tensors
        self._convert_error = convert_error
        # StreamErrors.mark_reported() of the group. Called once, when this work reports the failure of its call.
        self._mark_reported = mark_reported
        self._unreported: Optional[Error] = None
        self._thread = thread
        self.kept: Optional[KeptWorks] = None
        self._lock = threading.Lock()
        self._error: Optional[Exception] = None
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def _ended(self) -> bool:
        """Whether the _core.Work has ended. If it has, stores its error."""
        with self._lock:
            started = self._started
            if started is not None and started.test():
                self._learn(started)
            return self._started is None

    def _learn(self, started: Any) -> None:
        """Stores the error of the call, which has ended. Called with the lock held."""
        try:
            started.wait()
        except Error as error:
            self._error, self._unreported = self._convert_error(error), error
        self._started = None

    def _failure(self) -> Optional[Exception]:
        """Returns the failure of the call if the call has ended with one, and marks it as reported. Otherwise None."""
        self._ended()
        with self._lock:
            unreported, self._unreported = self._unreported, None
        if unreported is not None:
            self._mark_reported(unreported)
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Makes the current stream wait for the call; the host does not block. Raises the failure of the call if it has
        already ended with one."""
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
        """Waits until the call has ended, and completes the future, which runs the future's callbacks."""
        while not self._ended():
            started = self._started
            if started is not None:
                with contextlib.suppress(Error):  # _ended() gets the error again, and stores it
                    started.wait()
        ready, self._ready = self._ready, None
        assert ready is not None
        with torch.cuda.stream(self._stream):
            ready.set_result(self._tensors)
