"""The exceptions of Tutti: one class for each error code. All are subclasses of Error. Some are also subclasses of the
built-in Python exception for the same failure: DeadlineError, for example, is a TimeoutError."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type

from . import _core

_CODES = {number: name for name, number in _core.error_codes.items()}
_SCOPES = {number: name for name, number in _core.error_scopes.items()}


class Error(RuntimeError):
    """One failure of a call, with a message that a person can act on.

    code     the type of failure: "peer lost", "invalid argument", ... (the keys of tutti.errors.CLASSES)
    scope    the largest thing that is lost: "call" (the communicator works as before), "connection" or "communicator"
             (every further call on it fails), "process"
    rank     the rank that caused the failure, or None if there is no single one
    message  cause; rank, peer and operation if known; and the remedy
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
    """This rank passed a wrong argument. The call did not happen; make it again with correct arguments. If `rank` is
    not None, a buffer of that rank could not be accessed during the call."""


class MismatchError(Error):
    """The ranks of one call, or of set-up, disagree on its arguments; `rank` is a rank that differs. After a call the
    communicator stays usable."""


class InvalidPlanError(Error):
    """The text of a plan is malformed, or the verifier refused the plan."""


class UnsupportedError(Error, NotImplementedError):
    """The arguments are correct, but this build or this machine cannot execute the call."""


class ConfigError(Error):
    """An option or a variable of the environment is unknown or has a bad value, or the settings do not fit this
    machine."""


class DeadlineError(Error, TimeoutError):
    """The timeout of a call or of set-up passed without progress; the message names the missing ranks if they are
    known."""


class AbortedError(Error):
    """abort() was called on this rank or on a peer, or this rank's communicator has ended; or the
    call was uniform and failed on another rank."""


class PeerLostError(Error, ConnectionError):
    """The process of the peer `rank` ended, its connection broke, or it left the communicator. shrink() makes a
    communicator without it."""


class RefusedError(Error):
    """A peer is not accepted, for example because it belongs to a different job, user or protocol version, or sent a
    malformed message."""


class SystemCallError(Error):
    """The operating system refused a request, for example because of missing memory, descriptors or permissions."""


class DeviceError(Error):
    """The CUDA driver returned an error, or a kernel failed."""


class DamagedError(Error):
    """A message was corrupted in transit. Detected only if the communicator or the call has checksum=True."""


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
