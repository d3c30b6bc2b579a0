"""Records calls as events of torch's profiler, for example "tutti:all_reduce". An event lasts from the call until its
work has ended."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch.futures import Future

from .. import _core
from .work import HostWork

_NAMES: Dict[int, str] = {number: f"tutti:{name}" for name, number in _core.collectives.items()}

# Whether a profiler is active in this thread. It is called for every operation and takes 50 ns.
profiling: Callable[[], bool] = torch.autograd._profiler_enabled


def recorded(what: Any, start: Callable[[], Any]) -> Any:
    """Runs start(), which returns a Work, and records it as an event. `what`: the number of a collective, or the name
    of the call."""
    name = _NAMES[what] if isinstance(what, int) else f"tutti:{what}"
    with torch.autograd.profiler.record_function(name) as event:
        work = start()
        if isinstance(work, HostWork):  # the event must end before wait() returns, because the profiler may end then
            ended: Future = Future()
            event._call_end_callbacks_on_future(ended)
            work.set_end_future(ended)
    return work
