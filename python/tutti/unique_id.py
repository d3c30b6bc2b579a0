"""UniqueId: the id with which the ranks of a new communicator find each other (include/tutti/unique_id.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from . import _core
from .errors import InvalidArgumentError


@dataclass(frozen=True)
class UniqueId:
    """128 bytes with which the ranks of one communicator find and authenticate each other. Any process that has the
    bytes can join (unless a job key is required as well), so send them only through channels that others cannot read.

    Any process can create an id, and must not exit before the set-up of the ranks is complete. An id can be used for
    one communicator only. A UniqueId can be pickled.
    """

    bytes: bytes

    def __post_init__(self) -> None:
        if len(self.bytes) != 128:
            raise InvalidArgumentError(f"a unique id has 128 bytes, this one {len(self.bytes)}")

    @staticmethod
    def create(
        *, interface: str = "", ports: Tuple[int, int] = (0, 0), timeout: float = 600.0, job_key_file: str = ""
    ) -> "UniqueId":
        """Creates an id, and a listening socket in this process for the set-up of the ranks.

        interface     the network interface to listen on: a comma-separated list of names, subnets or addresses;
                      "": TUTTI_INTERFACE or, if that is not set, only this machine
        ports         first and last port of the range to use; (0, 0): TUTTI_PORT_RANGE or, if that is not set, any port
        timeout      seconds to wait for the first rank, at most one day
        job_key_file  path of a file with a secret that every rank needs in addition to the id; "": TUTTI_JOB_KEY_FILE,
                      then TUTTI_JOB_KEY; if neither is set, the id is the only secret
        Raises InvalidArgumentError (wrong ports or timeout), ConfigError (for example: the interface does not exist),
        SystemCallError (for example: no free port).
        """
        return UniqueId(_core.create_unique_id(interface, ports[0], ports[1], round(timeout * 1000), job_key_file))

    @staticmethod
    def from_text(text: str) -> "UniqueId":
        """The inverse of to_text(). Raises InvalidArgumentError if the text is not a unique id."""
        return UniqueId(_core.unique_id_from_text(text))

    def to_text(self) -> str:
        """Returns the id as 256 hexadecimal digits."""
        return _core.unique_id_to_text(self.bytes)
