"""empty(): creates tensors in memory that the other ranks of the machine can access directly, so that collectives on
these tensors avoid a copy."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import torch.distributed as dist

from .errors import invalid


def empty(*size: Any, dtype: Optional[torch.dtype] = None, group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """Creates a zeroed host tensor in registered memory. Local call.

    `size`: as for torch.empty(). `group`: a process group of backend "tutti"; None: the default group. The memory is
    freed with the last tensor that uses it. The memory belongs to the group, so do not use the tensors after
    destroy_process_group().
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    of = group if group is not None else dist.distributed_c10d._get_default_group()
    communicator = getattr(of, "communicator", None)
    if communicator is None:
        raise invalid("tutti.torch.empty() takes a process group of backend tutti that has not been destroyed")
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    memory = communicator.allocate(count * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)  # the tensor keeps the memory alive
