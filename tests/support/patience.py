"""The time limit of Python tests for events that must happen; see patience.h."""

from __future__ import annotations

import os
import time
from typing import Callable


def scaled(seconds: float) -> float:
    """`seconds` times TUTTI_TEST_PATIENCE (default 1)."""
    try:
        asked = float(os.environ.get("TUTTI_TEST_PATIENCE", "1"))
    except ValueError:
        asked = 1.0
    return seconds * (asked if asked > 0 else 1.0)


PATIENCE_S = scaled(30)


def eventually(done: Callable[[], bool]) -> bool:
    """Waits until done() is true. Returns False if it is still false after PATIENCE_S."""
    latest = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > latest:
            return done()
        time.sleep(0.01)
    return True
