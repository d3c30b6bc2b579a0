"""What Tutti raises. One class for each kind of failure; all are Error, and some also what Python calls that
failure."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type

from . import _core

_CODES = {number: name for name, number in _core.error_codes.items()}
_SCOPES = {number: name for name, number in _core.error_scopes.items()}


class Error(RuntimeError):
    """One failure of a call, told so that a person can act on it.

    code     what kind: "peer lost", "invalid argument", ... (the keys of tutti.errors.CLASSES)
    scope    what it has cost: "call" (the communicator works on), "connection", "communicator" (every further call on
             it fails), "process"
    rank     the rank to blame, or None where no single one is
    message  cause, rank, peer and operation as far as known, and what to do
    """

    code: str
    scope: str
    rank: Optional[int]
    message: str

    def __init__(
        self, message: str, *, code: str = "invalid argument", scope: str = "call", rank: Optional[int] = None
    ):
        super().__init__(_core.error_text(_core.error_codes[code], message))
        self.code = code
        self.scope = scope
        self.rank = rank
        self.message = message

    def __reduce__(self) -> Any:
        return _remake, (type(self), self.message, self.code, self.scope, self.rank)


class InvalidArgumentError(Error, ValueError):
    """This rank passed something that cannot be right. The call has not happened: make it again."""


class MismatchError(Error):
    """The ranks of one call disagree on its arguments; `rank` is who differs. The communicator works on."""


class InvalidPlanError(Error):
    """A plan was refused by the verifier."""


class UnsupportedError(Error, NotImplementedError):
    """Right, but this build or this machine cannot do it."""


class ConfigError(Error):
    """An option or a TUTTI_* variable is unknown or has a bad value."""


class DeadlineError(Error, TimeoutError):
    """A deadline passed; the ranks that were missing are in the message."""


class AbortedError(Error):
    """abort() was called here or on a peer."""


class PeerLostError(Error, ConnectionError):
    """A peer's process ended: `rank`. shrink() goes on without it."""


class RefusedError(Error):
    """A peer is not who it should be: another job, user or version."""


class SystemCallError(Error):
    """The operating system refused: out of memory, of descriptors, no permission."""


class DeviceError(Error):
    """The CUDA driver refused, or a kernel failed."""


class DamagedError(Error):
    """Bits of a message changed on their way (checksum=True finds them)."""


CLASSES: Dict[str, Type[Error]] = dict(
    zip(
        _core.error_codes,
        (
            InvalidArgumentError,
            MismatchError,
            InvalidPlanError,
            UnsupportedError,
            ConfigError,
            DeadlineError,
            AbortedError,
            PeerLostError,
            RefusedError,
            SystemCallError,
            DeviceError,
            DamagedError,
        ),
    )
)


def _make(code: int, scope: int, rank: int, message: str) -> Error:
    name = _CODES[code]
    return CLASSES[name](message, code=name, scope=_SCOPES[scope], rank=None if rank < 0 else rank)


def _remake(kind: Type[Error], message: str, code: str, scope: str, rank: Optional[int]) -> Error:
    return kind(message, code=code, scope=scope, rank=rank)


_core.set_error_class(_make)
