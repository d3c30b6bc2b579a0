"""Records calls as events of torch's profiler, for example "tutti:all_reduce". The event of a call on host memory lasts
until its work has ended; that of a call on CUDA memory lasts until the call is queued."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch.futures import Future

from .. import _core
from .work import HostWork

_NAMES: Dict[int, str] = {number: f"tutti:{name}" for name, number in _core.collectives.items()}

# Returns whether a profiler is active in this thread. Called for every operation; a call takes 50 ns.
profiling: Callable[[], bool] = torch.autograd._profiler_enabled


def recorded(what: Any, start: Callable[[], Any]) -> Any:
    """Runs start(), which returns a Work, records the call as an event, and returns the Work. `what`: the number of a
    collective, or the name of the call."""
    name = _NAMES[what] if isinstance(what, int) else f"tutti:{what}"
    with torch.autograd.profiler.record_function(name) as event:
        work = start()
        # The event of a HostWork must end before wait() returns, because the program may stop the profiler then.
        if isinstance(work, HostWork):
            ended: Future = Future()
            event._call_end_callbacks_on_future(ended)
            work.set_end_future(ended)
    return work
