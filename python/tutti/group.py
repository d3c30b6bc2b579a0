"""Work: an operation in progress. Group: calls that start together."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from . import _core


class Work:
    """A handle to an operation in progress. Destroying the Work does not stop the operation, whose arrays are kept
    alive until it has ended. May be used from any thread, but by one thread at a time.

    result   the return value of the corresponding blocking call; valid only after wait() has returned
    """

    __slots__ = ("_core", "result", "__weakref__")

    def __init__(self, core: _core.Work, result: Any, keep: Any):
        core.keep(keep)
        self._core = core
        self.result = result

    def wait(self) -> Any:
        """Blocks until the operation has ended, and returns its result or raises its error. May be called
        repeatedly."""
        self._core.wait()
        return self.result

    def test(self) -> bool:
        """Whether the operation has ended; wait() then returns at once. Does not block, with one exception, which
        Work::test() in include/tutti/communicator.h describes."""
        return self._core.test()


class Group:
    """Collectives, sends and receives that start together, on one communicator or on several. Pass the group to calls
    as their argument `group`:

        with tutti.Group() as group:
            comm.send(x, right, group=group)
            comm.receive(y, left, group=group)

    The calls start at run() or start(); the end of the with block calls run() or, after an exception, discards the
    calls. The calls run at the same time, so no call may use the result of another one. A Group is used by one thread
    at a time, and is empty after run() or start().
    """

    def __init__(self) -> None:
        self._core = _core.Group()
        self._results: List[Any] = []
        self._kept: List[Any] = []

    def run(self) -> List[Any]:
        """Starts all calls and waits for those on host memory. Returns the results of all in the order of the calls. If
        calls fail, raises the error of one of them."""
        results, _ = self._take()
        self._core.run()
        return results

    def start(self) -> Work:
        """Starts all calls, and returns a Work for all of them together. It ends when all calls have ended."""
        results, kept = self._take()
        return Work(self._core.start(), results, kept)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[type], *_: Any) -> None:
        if kind is None:
            self.run()
        else:  # an exception was raised: discard the calls
            self._core.drop()
            self._results, self._kept = [], []

    def _added(self, result: Any, keep: Any) -> Any:
        self._results.append(result)
        self._kept.append(keep)
        return result

    def _take(self) -> Tuple[List[Any], List[Any]]:
        taken = self._results, self._kept
        self._results, self._kept = [], []
        return taken
