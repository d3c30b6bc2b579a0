"""UniqueId: where the ranks of one communicator meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from . import _core
from .errors import InvalidArgumentError


@dataclass(frozen=True)
class UniqueId:
    """128 bytes by which ranks meet and know each other; whoever has them can join, so send them where others cannot
    read.

    Any process makes one, and must live until the ranks have met; it serves one communicator. Pickles.
    """

    bytes: bytes

    def __post_init__(self) -> None:
        if len(self.bytes) != 128:
            raise InvalidArgumentError(f"a unique id has 128 bytes, this one {len(self.bytes)}")

    @staticmethod
    def create(
        *, interface: str = "", ports: Tuple[int, int] = (0, 0), patience: float = 600.0, job_key_file: str = ""
    ) -> "UniqueId":
        """A new one, with a socket in this process by which the ranks meet.

        interface  where it listens: names, subnets or addresses, a comma between; "": TUTTI_INTERFACE, else this
                   machine alone
        ports      to choose from, both included; (0, 0): TUTTI_PORT_RANGE, else any
        patience   seconds that it waits for the first rank, at most a day
        job_key_file   a secret that every rank must have as well, so that the id alone lets nobody in; "":
                   TUTTI_JOB_KEY_FILE, TUTTI_JOB_KEY, else the id is the only secret
        Raises ConfigError (no such interface), SystemCallError (no free port).
        """
        return UniqueId(_core.create_unique_id(interface, ports[0], ports[1], round(patience * 1000), job_key_file))

    @staticmethod
    def from_text(text: str) -> "UniqueId":
        """The inverse of to_text(). Raises InvalidArgumentError for what is none."""
        return UniqueId(_core.unique_id_from_text(text))

    def to_text(self) -> str:
        """256 hexadecimal digits."""
        return _core.unique_id_to_text(self.bytes)
