"""Converts Tutti's exceptions for users of torch, so that all except InvalidArgumentError are also instances of
torch.distributed.DistBackendError."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Type

import torch.distributed as dist

from ..errors import Error, InvalidArgumentError, UnsupportedError

# DistBackendError exists since torch 2.0.
_TORCH_ERROR: Type[Exception] = getattr(dist, "DistBackendError", RuntimeError)
_CLASSES: Dict[Type[Error], Type[Error]] = {}


def _remake(kind: Type[Error], words: Dict[str, Any]) -> Error:
    return _class_for(kind)(**words)


def _reduce(self: Error) -> Any:
    words = {"message": self.message, "code": self.code, "scope": self.scope, "rank": self.rank}
    return _remake, (type(self)._kind, words)  # type: ignore[attr-defined]  # pickle finds the class _kind by its name


def _class_for(kind: Type[Error]) -> Type[Error]:
    made = _CLASSES.get(kind)
    if made is None:
        if issubclass(kind, _TORCH_ERROR) or issubclass(kind, InvalidArgumentError):
            made = kind
        else:
            fields = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduce, "_kind": kind}
            made = type(kind.__name__, (kind, _TORCH_ERROR), fields)
        _CLASSES[kind] = made
    return made


def for_torch(error: Error, global_ranks: Optional[Sequence[int]] = None) -> Error:
    """Returns the same failure as an exception that is also a DistBackendError (except an InvalidArgumentError).

    `global_ranks`: element i is the rank in the default group of rank i of this group; empty or None: not known. If the
    two numbers of the rank that caused the failure differ, the message states both.
    """
    message = error.message
    rank = error.rank
    if global_ranks and rank is not None and rank < len(global_ranks) and global_ranks[rank] != rank:
        message += f" (rank {rank} of this group is global rank {global_ranks[rank]})"
    converted = _class_for(type(error))(message, code=error.code, scope=error.scope, rank=rank)
    return converted.with_traceback(error.__traceback__)


def unsupported(words: str) -> Error:
    """Returns the error for a call that this backend cannot make. It is raised before anything is sent."""
    return for_torch(UnsupportedError(words, code="unsupported"))


def invalid(words: str) -> InvalidArgumentError:
    """Returns the error for a wrong argument of this rank. It is raised before anything is sent (except by the root of
    a scatter, which tells the other ranks)."""
    return InvalidArgumentError(words)
