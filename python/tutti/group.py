"""Work under way, and calls that start as one."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from . import _core


class Work:
    """An operation under way. It goes on when this is dropped, and keeps its arrays until then.

    From any thread. result: what the blocking call would have returned; not to be read before wait() has.
    """

    __slots__ = ("_core", "result", "__weakref__")

    def __init__(self, core: _core.Work, result: Any, keep: Any):
        core.keep(keep)
        self._core = core
        self.result = result

    def wait(self) -> Any:
        """Blocks until the operation has ended and returns its result; raises what it failed with. May be called
        again."""
        self._core.wait()
        return self.result

    def test(self) -> bool:
        """Whether it has ended (wait() then returns at once). Never blocks."""
        return self._core.test()


class Group:
    """Collectives, sends and receives that start as one, on one communicator or several: pass it to calls as `group`.

        with tutti.Group() as group:
            comm.send(x, right, group=group)
            comm.receive(y, left, group=group)

    Nothing happens before run() or start(), or the end of the with block, which does run(). Calls of one group run at
    the same time: none may use what another one gives. For one thread at a time.
    """

    def __init__(self) -> None:
        self._core = _core.Group()
        self._results: List[Any] = []
        self._kept: List[Any] = []

    def run(self) -> List[Any]:
        """Starts everything, waits for all of it; the results in the order of the calls. Raises the first error."""
        results, _ = self._take()
        self._core.run()
        return results

    def start(self) -> Work:
        """Starts everything. The Work ends when all of it has."""
        results, kept = self._take()
        return Work(self._core.start(), results, kept)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[type], *_: Any) -> None:
        if kind is None:
            self.run()
        else:  # nothing of it is to happen
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
