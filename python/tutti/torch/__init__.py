"""Tutti as a backend of torch.distributed: init_process_group("tutti").

torch 2.14 and later find the backend by its name; 2.5 and later register it at `import torch`. With versions before
2.5, or with TORCH_DEVICE_BACKEND_AUTOLOAD=0 before 2.14, the program must `import tutti.torch`, which registers it.
docs/pytorch.md describes the supported functions.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Optional



def autoload() -> None:
    """For the entry point `torch.backends`, which torch calls at the end of its own import.

    This function is defined before the import of torch below. If this module is the first to import torch, torch calls
    autoload() while the rest of this module does not exist yet. In this case autoload() does nothing, and the end of
    this module calls register().
    """
    if "register" in globals():
        register()


import torch.distributed as dist  # noqa: E402

if TYPE_CHECKING:
    from .process_group import ProcessGroupTutti
    from .rendezvous import Options

__all__ = ["Options", "ProcessGroupTutti", "autoload", "empty", "register"]

_NAME = "tutti"


def _create(group: Any, options: Optional[Any] = None) -> Any:
    """Creates the process group. If torch knows extended_api, it calls this function for each group. `group` is a
    _DistributedBackendOptions of torch, `options` the caller's tutti.torch.Options or None."""
    from .process_group import ProcessGroupTutti

    return ProcessGroupTutti(
        group.store,
        group.group_rank,
        group.group_size,
        group.timeout,
        options=options,
        global_ranks=list(group.global_ranks_in_group),
        enable_reconfigure=getattr(group, "enable_reconfigure", False),
    )


def register() -> None:
    """Registers the backend "tutti" with torch.distributed. May be called repeatedly."""
    if not dist.is_available() or _NAME.upper() in getattr(dist.Backend, "_plugins", {}):
        return
    known = inspect.signature(dist.Backend.register_backend).parameters
    extra: dict = {}
    if "devices" in known:
        extra["devices"] = ["cpu", "cuda"]
    if "extended_api" in known:
        dist.Backend.register_backend(_NAME, _create, extended_api=True, **extra)
    else:
        from .process_group import ProcessGroupTutti

        dist.Backend.register_backend(_NAME, ProcessGroupTutti, **extra)


def __getattr__(name: str) -> Any:
    # These names are imported at their first use, so that `import torch`, which imports this module to register the
    # backend, stays fast for programs that do not use the backend.
    if name == "ProcessGroupTutti":
        from .process_group import ProcessGroupTutti

        return ProcessGroupTutti
    if name == "Options":
        from .rendezvous import Options

        return Options
    if name == "empty":
        from .memory import empty

        return empty
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
