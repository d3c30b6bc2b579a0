"""Converts Tutti's exceptions for users of torch: they are also instances of torch.distributed.DistBackendError."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Type

import torch.distributed as dist

from ..errors import Error, InvalidArgumentError

# The class exists since torch 2.0.
_TORCH_ERROR: Type[Exception] = getattr(dist, "DistBackendError", RuntimeError)
_CLASSES: Dict[Type[Error], Type[Error]] = {}


def _remake(kind: Type[Error], words: Dict[str, Any]) -> Error:
    return _class_for(kind)(**words)


def _reduce(self: Error) -> Any:
    words = {"message": self.message, "code": self.code, "scope": self.scope, "rank": self.rank}
    return _remake, (type(self)._kind, words)  # type: ignore[attr-defined]  # pickle can find this class by its name


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
    """Returns the same failure as an exception that is also a DistBackendError.

    `global_ranks`: for a sub-group, the rank in the default group of each rank in this group. The message then states
    both rank numbers.
    """
    message = error.message
    rank = error.rank
    if global_ranks and rank is not None and rank < len(global_ranks) and global_ranks[rank] != rank:
        message += f" (rank {rank} of this group is global rank {global_ranks[rank]})"
    converted = _class_for(type(error))(message, code=error.code, scope=error.scope, rank=rank)
    return converted.with_traceback(error.__traceback__)


def invalid(words: str) -> InvalidArgumentError:
    """The error for a wrong argument of this rank. Nothing has been sent."""
    return InvalidArgumentError(words)
