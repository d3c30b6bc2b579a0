"""Calls as events of torch's profiler: "tutti:all_reduce", from the call until its work has ended."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch.futures import Future

from .. import _core
from .work import HostWork

_NAMES: Dict[int, str] = {number: f"tutti:{name}" for name, number in _core.collectives.items()}

# Whether a profiler runs in this thread. Asked in every call: it takes 50 ns.
profiling: Callable[[], bool] = torch.autograd._profiler_enabled


def recorded(what: Any, start: Callable[[], Any]) -> Any:
    """What start() gives, a Work, as an event. `what`: a collective by its number, or the call's name."""
    name = _NAMES[what] if isinstance(what, int) else f"tutti:{what}"
    with torch.autograd.profiler.record_function(name) as event:
        work = start()
        if isinstance(work, HostWork):  # ends before its wait() does: the profiler may be gone after that
            ended: Future = Future()
            event._call_end_callbacks_on_future(ended)
            work.tell_end(ended)
    return work
