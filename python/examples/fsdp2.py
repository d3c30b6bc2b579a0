"""Trains a transformer with fully sharded parameters (FSDP2) over Tutti, and compares the losses with one process.

    torchrun --nproc-per-node 4 fsdp2.py

Every rank holds a part of the parameters, gradients and optimizer state. The mean of the ranks' losses is equal to the
loss of one process that has all the data, except for rounding, because the additions have another order.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tutti.torch  # noqa: F401  (not needed with torch 2.5 and later)

STEPS = 5


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(64, 8))


def main() -> None:
    dist.init_process_group("tutti")
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = network()
    sharded = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (size,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)

    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, sharded)]
    for step in range(STEPS):
        torch.manual_seed(1 + step)
        inputs, targets = torch.randn(size, 4, 10, 64), torch.randn(size, 4, 10, 8)
        losses = [
            nn.functional.mse_loss(whole(inputs.flatten(0, 1)), targets.flatten(0, 1)),
            nn.functional.mse_loss(sharded(inputs[rank]), targets[rank]),
        ]
        for optimizer, loss in zip(optimizers, losses):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = losses[1].detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        difference = (mean - losses[0].detach()).abs().item()
        if rank == 0:
            print(f"step {step}: loss {mean.item():.6f}, one process {losses[0].item():.6f}")
        assert difference < 1e-5, f"the losses are {difference} apart"
    shares = sum(p.to_local().numel() for p in sharded.parameters())
    print(f"rank {rank} of {size} holds {shares} of {sum(p.numel() for p in whole.parameters())} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
