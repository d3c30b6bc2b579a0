"""Tutti: collective communication for NumPy arrays, GPU arrays, and other objects that expose their memory.

import numpy, tutti

comm = tutti.Communicator()              # rank, size and address come from the environment
comm.all_reduce(numpy.ones(1000))        # in place; start with: tutti run -n 4 -- python this.py
"""

from ._core import Agreement
from ._core import version as __version__
from .communicator import Communicator
from .errors import (
    AbortedError,
    ConfigError,
    DamagedError,
    DeadlineError,
    DeviceError,
    Error,
    InvalidArgumentError,
    InvalidPlanError,
    MismatchError,
    PeerLostError,
    RefusedError,
    SystemCallError,
    UnsupportedError,
)
from .group import Group, Work
from .unique_id import UniqueId

__all__ = [
    "AbortedError",
    "Agreement",
    "Communicator",
    "ConfigError",
    "DamagedError",
    "DeadlineError",
    "DeviceError",
    "Error",
    "Group",
    "InvalidArgumentError",
    "InvalidPlanError",
    "MismatchError",
    "PeerLostError",
    "RefusedError",
    "SystemCallError",
    "UniqueId",
    "UnsupportedError",
    "Work",
    "__version__",
]
