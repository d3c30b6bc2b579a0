"""How long a test waits for something that must happen before it fails: patience.h for Python."""

from __future__ import annotations

import os
import time
from typing import Callable


def scaled(seconds: float) -> float:
    """That many seconds, times TUTTI_TEST_PATIENCE (default 1)."""
    try:
        asked = float(os.environ.get("TUTTI_TEST_PATIENCE", "1"))
    except ValueError:
        asked = 1.0
    return seconds * (asked if asked > 0 else 1.0)


PATIENCE_S = scaled(30)


def eventually(done: Callable[[], bool]) -> bool:
    """Waits until done() is true. False: it was not within PATIENCE_S."""
    latest = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > latest:
            return done()
        time.sleep(0.01)
    return True
