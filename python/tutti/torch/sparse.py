"""all_reduce of sparse tensors: each rank gathers the non-zero elements of all ranks' tensors, and adds them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .errors import unsupported
from .work import EndedWork


def all_reduce_sparse(group: Any, tensor: torch.Tensor, opts: Any) -> EndedWork:
    """Replaces the COO tensor of every rank by the sum over all ranks. Blocks until the result is there. The tensors of
    the ranks may have different numbers of non-zero elements."""
    if opts.reduceOp != dist.ReduceOp.SUM:
        raise unsupported("sparse tensors are summed; for other reductions call .to_dense()")
    waits = c10d.AllgatherOptions()
    waits.timeout = opts.timeout
    if hasattr(waits, "asyncOp"):
        waits.asyncOp = False
    mine = tensor.detach().coalesce()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    counts = torch.empty(group.size(), dtype=torch.int64, device=tensor.device)
    group._allgather_base(counts, torch.tensor([values.size(0)], device=tensor.device), waits).wait()
    every_index = [indices.new_empty(count, indices.size(1)) for count in counts.tolist()]
    every_value = [values.new_empty(count, *values.shape[1:]) for count in counts.tolist()]
    group.allgather([every_index], [indices], waits).wait()
    group.allgather([every_value], [values], waits).wait()
    total = torch.sparse_coo_tensor(torch.cat(every_index).t(), torch.cat(every_value), tensor.shape)
    with torch.no_grad():  # and not tensor.detach().copy_(), because a detached sparse tensor has indices of its own
        tensor.copy_(total.coalesce())
    work = EndedWork([tensor])
    group._kept.append(work)
    return work
