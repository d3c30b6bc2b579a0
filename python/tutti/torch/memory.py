"""Tensors in memory that the other ranks of the machine reach in place: collectives on them need no copy."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import torch.distributed as dist

from .errors import refused


def empty(*size: Any, dtype: Optional[torch.dtype] = None, group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """A new host tensor of registered memory, zeroed. Local call.

    `size` as of torch.empty; `group`: one of backend "tutti", default: the default group. The memory lives as long as
    a tensor that uses it, and belongs to the group: do not use it after destroy_process_group().
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    of = group if group is not None else dist.distributed_c10d._get_default_group()
    communicator = getattr(of, "communicator", None)
    if communicator is None:
        raise refused("tutti.torch.empty() takes a process group of backend tutti that has not been destroyed")
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    memory = communicator.allocate(count * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)  # it holds the memory
