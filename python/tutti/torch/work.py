"""Works: calls under way, as torch sees them, and the thread that completes their futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.futures import Future

from ..errors import DeadlineError, Error

Finish = Callable[[], None]
# Raises an exception as one of the group's. Given to each Work by its group.
Tell = Callable[[Error], Exception]
# Between looks at works that end in any order.
_SHORTEST_PAUSE_S = 1e-5
_LONGEST_PAUSE_S = 2e-3
_making_future = threading.Lock()  # one for all: it is held for a moment


class DoneWork(dist.Work):
    """Of a call that has ended well before it returned. One object serves all such calls of a group."""

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
    """As that, with outputs to tell."""

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
    """Waits for works in the order of their calls and completes their futures. Started when first needed.

    For collectives: none of a group's ends before those called earlier."""

    def __init__(self) -> None:
        self._works: "queue.SimpleQueue[Any]" = queue.SimpleQueue()  # of HostWork and CudaWork; None: the end
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
        """Whether the caller, a callback, is what the next future would wait for."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """When all works have ended. Not from a future's own callback."""
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
            del work  # else its tensors would live until the next one comes


class PollThread(FutureThread):
    """The same for sends and receives, which end in any order, or never."""

    def would_wait_for_itself(self) -> bool:
        return False  # one that listens may ask for its next message's future, and must not wait for the message

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
            work = None  # else its tensors would live until the next one comes
            ended: List[HostWork] = []
            for _ in range(len(pending)):  # each is asked once: it may end between two looks
                pending.append(pending.pop(0))
                if pending[-1].is_completed():
                    ended.append(pending.pop())
            if ended:
                pause = _SHORTEST_PAUSE_S
            while ended:
                ended.pop(0).complete()
        for each in pending:
            each.complete()


class Kept:
    """The last `limit` works that nobody has waited for. torch's C++ before 2.8 does not hold the Python half of a
    Work, without which it waits for ever."""

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

    Holds the tensors until the call has ended. Any thread may use it. Its future has the outputs as value; a failure
    is raised where a Python or a C++ caller waits, with the runtime's words.
    """

    def __init__(
        self,
        started: Any,
        tensors: List[torch.Tensor],
        tell: Tell,
        thread: FutureThread,
        finish: Optional[Finish] = None,
        held: Any = None,
        under_way: Optional[Dict[int, "HostWork"]] = None,
        may_stay: bool = False,
    ):
        super().__init__()
        self._started = started  # a _core.Work, or whatever has its wait() and test()
        self._tensors = tensors
        self._tell = tell
        self._thread = thread
        self._finish = finish  # copies results from where the call has put them; runs once
        self._held = held  # other buffers of the call
        self.kept: Optional[Kept] = None  # where it is until somebody has its end: its tensors live as long
        self._under_way = under_way  # it stands there until it has ended
        self.may_stay = may_stay  # is a receive: perhaps nobody ever sends
        self.source = -1  # of a receive from any rank, when it has ended
        self._lock = threading.Lock()
        self._ended = False
        self._error: Optional[Exception] = None
        self._told: Optional[Future] = None  # completed at the end of the call, before anybody who waits goes on
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        if not self._ended:
            if timeout is not None and timeout > timedelta(0):
                self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
            else:  # never for the thread of futures: that may be in a callback which waits for this
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
                words = f"the call has not ended within {timeout.total_seconds():g} s; it goes on"
                raise self._tell(DeadlineError(words, code="timeout"))
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def _end(self) -> None:
        """Waits for the call and what comes after it. Several threads may come."""
        with self._lock:
            if self._ended:
                return
            try:
                self._started.wait()
                if self._finish is not None:
                    self._finish()
            except Error as error:
                self._error = self._tell(error)
            except Exception as error:
                self._error = error
            self._started = self._finish = self._held = None
            told, self._told = self._told, None
            if told is not None:
                told.set_result(None)
            self._ended = True
            if self._under_way is not None:
                self._under_way.pop(id(self), None)

    def is_completed(self) -> bool:
        if self._ended:
            return True
        if not self._lock.acquire(blocking=False):
            return False  # a thread waits for it
        try:
            over = self._ended or self._started.test()
        except Error:
            over = True  # _end() will hear it again
        finally:
            self._lock.release()
        if over:
            self._end()
        return over

    def tell_end(self, told: Future) -> None:
        with self._lock:
            if not self._ended:
                self._told = told
                return
        told.set_result(None)

    def has_ended(self) -> bool:
        """is_completed() as it was last heard of."""
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
            # A failure that a callback raises is one for C++, too; one that set_exception() stores is not.
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
        """Ends the work and completes the future, with its callbacks."""
        self._end()
        ready, self._ready = self._ready, None
        assert ready is not None
        ready.set_result(None)


class CudaWork(dist.Work):
    """A call that has been put into a stream: ended when what was put in front of `event` has, and its own C++ Work.

    Any thread may use it. Its future is completed by the thread of futures once the call has ended, so that it can tell
    a failure.
    """

    def __init__(
        self,
        started: Any,
        event: Any,
        stream: Any,
        tensors: List[torch.Tensor],
        tell: Tell,
        heard: Callable[[Error], None],
        thread: FutureThread,
    ):
        super().__init__()
        self._started = started  # a _core.Work; None when its end is known
        self._event = event
        self._stream = stream
        self._tensors = tensors
        self._tell = tell
        self._heard = heard  # the group's: called once, where the call's failure is told
        self._untold: Optional[Error] = None
        self._thread = thread
        self.kept: Optional[Kept] = None
        self._lock = threading.Lock()
        self._error: Optional[Exception] = None
        self._ready: Optional[Future] = None
        self._future: Optional[Future] = None

    def _ended(self) -> bool:
        """Whether the call has; then its failure is known."""
        with self._lock:
            started = self._started
            if started is not None and started.test():
                self._learn(started)
            return self._started is None

    def _learn(self, started: Any) -> None:
        """With the lock."""
        try:
            started.wait()
        except Error as error:
            self._error, self._untold = self._tell(error), error
        self._started = None

    def _failure(self) -> Optional[Exception]:
        """What is known of it, to be told."""
        self._ended()
        with self._lock:
            untold, self._untold = self._untold, None
        if untold is not None:
            self._heard(untold)
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Lets the current stream wait; the host goes on. Raises what has become known of the call until now."""
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
        """Waits for the call and completes the future, with its callbacks."""
        while not self._ended():
            started = self._started
            if started is not None:
                with contextlib.suppress(Error):  # _ended() hears it again
                    started.wait()
        ready, self._ready = self._ready, None
        assert ready is not None
        with torch.cuda.stream(self._stream):
            ready.set_result(self._tensors)


class Joined:
    """Several of what has wait() and test() as one."""

    def __init__(self, parts: Tuple[Any, ...]):
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def test(self) -> bool:
        return all(part.test() for part in self._parts)
