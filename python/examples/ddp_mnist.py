"""Trains a small network on Fashion-MNIST with data parallelism over Tutti.

    torchrun --nproc-per-node 4 ddp_mnist.py
    mpirun -n 4 python ddp_mnist.py            # or srun, tutti run -n 4 --: any launcher that Tutti supports
    torchrun --nproc-per-node 4 ddp_mnist.py --backend gloo     # gives the same losses

If the folder of the data set (--data FOLDER) does not exist on this machine, the program generates pictures with a
bright rectangle, and the network learns its position. The program prints which data it uses.
"""

import argparse
import gzip
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tutti.torch  # noqa: F401  (not needed with torch 2.5 and later)


def launched() -> dict:
    """Returns the arguments of init_process_group() for rank, size and address, from the variables of the launcher. For
    torchrun this is an empty dictionary, because torch reads torchrun's variables itself."""
    if "MASTER_ADDR" in os.environ and "RANK" in os.environ:
        return {}
    for rank, size in (
        ("TUTTI_RANK", "TUTTI_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if rank in os.environ and size in os.environ:
            where = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "29500")
            method = f"tcp://{where[0]}:{where[1]}"
            return {"init_method": method, "rank": int(os.environ[rank]), "world_size": int(os.environ[size])}
    return {"init_method": "tcp://127.0.0.1:29500", "rank": 0, "world_size": 1}


def read(folder: str, part: str, count: int) -> tuple:
    with gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz") as file:
        pictures = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=16).view(-1, 1, 28, 28)
    with gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=8).long()
    return pictures[:count].float() / 255, labels[:count]


def generate(count: int, seed: int) -> tuple:
    torch.manual_seed(seed)
    labels = torch.randint(0, 10, (count,))
    pictures = torch.rand(count, 1, 28, 28) * 0.5
    for picture, label in zip(pictures, labels.tolist()):
        picture[0, label // 5 * 14 : label // 5 * 14 + 10, label % 5 * 5 : label % 5 * 5 + 6] += 0.5
    return pictures, labels


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 6 * 6, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="pictures of one rank in one step")
    parser.add_argument("--pictures", type=int, default=12_800)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=120), **launched())
    rank, size = dist.get_rank(), dist.get_world_size()
    there = os.path.exists(f"{arguments.data}/train-images-idx3-ubyte.gz")
    if there:
        pictures, labels = read(arguments.data, "train", arguments.pictures)
        test_pictures, test_labels = read(arguments.data, "t10k", 2000)
    else:
        (pictures, labels), (test_pictures, test_labels) = generate(arguments.pictures, 1), generate(2000, 2)
    if rank == 0:
        print(f"data: {'Fashion-MNIST' if there else 'generated'}; backend {dist.get_backend()}, {size} ranks")

    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = time.perf_counter()
    for epoch in range(arguments.epochs):
        torch.manual_seed(epoch)
        mine = torch.randperm(len(labels))[rank::size]
        total, steps = torch.zeros(()), len(labels) // size // arguments.batch
        for step in range(steps):
            batch = mine[step * arguments.batch : (step + 1) * arguments.batch]
            loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / steps
        dist.all_reduce(total, dist.ReduceOp.SUM)
        with torch.no_grad():
            right = (model.module(test_pictures).argmax(1) == test_labels).float().mean().item()
        if rank == 0:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch}: loss {total.item() / size:.4f}, right {right:.1%}, {seconds:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
