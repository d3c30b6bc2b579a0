#!/usr/bin/env python3
"""Tests an unmodified PyTorch with Tutti's libnccl.so.2: collectives, groups, CUDA graphs, and DDP.

    LD_PRELOAD=build/release/lib/libnccl.so.2 tests/device/hardware/torch_nccl.py --ranks 4

Starts the ranks by itself; rank r uses GPU r % (number of GPUs). Prints a line for each check. The exit status is 1 if
a check fails, and 77 if there is no GPU. With --backend gloo --device cpu, it runs the same checks on a machine without
a GPU, except the check of CUDA graphs. DDP is compared with training in a single process. With --times, it measures
instead, and prints lines "time COLLECTIVE BYTES MICROSECONDS" (scripts/gpu-torch).
"""

import argparse
import datetime
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

COUNT = 100_003


def filled(rank, count, device):
    return (torch.arange(count, device=device) % 7 + rank).float()


def check_collectives(rank, ranks, device):
    mine = filled(rank, COUNT, device)
    total = sum(filled(r, COUNT, device) for r in range(ranks))
    summed = mine.clone()
    dist.all_reduce(summed)
    assert torch.equal(summed, total), "all_reduce"
    gathered = torch.empty(ranks * COUNT, device=device)
    dist.all_gather_into_tensor(gathered, mine)
    assert torch.equal(gathered, torch.cat([filled(r, COUNT, device) for r in range(ranks)])), "all_gather"
    if dist.get_backend() != "gloo":
        scattered = torch.empty(COUNT, device=device)
        dist.reduce_scatter_tensor(scattered, torch.cat([mine + r for r in range(ranks)]))
        assert torch.equal(scattered, total + rank * ranks), "reduce_scatter"
        swapped = torch.empty(ranks * 100, device=device)
        dist.all_to_all_single(swapped, torch.cat([torch.full((100,), float(10 * rank + r), device=device)
                                                   for r in range(ranks)]))
        assert torch.equal(swapped, torch.cat([torch.full((100,), float(10 * r + rank), device=device)
                                               for r in range(ranks)])), "all_to_all"
    received = torch.empty(COUNT, device=device)
    before = (rank + ranks - 1) % ranks
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank + 1) % ranks),
                                    dist.P2POp(dist.irecv, received, before)])
    for work in works:
        work.wait()
    assert torch.equal(received, filled(before, COUNT, device)), "send and receive"
    sent = mine.clone()
    dist.broadcast(sent, ranks - 1)
    assert torch.equal(sent, filled(ranks - 1, COUNT, device)), "broadcast"


def check_groups(rank, ranks, device):
    groups = [dist.new_group([r for r in range(ranks) if r % 2 == half]) for half in range(2)]
    value = torch.full((10,), float(rank), device=device)
    dist.all_reduce(value, group=groups[rank % 2])
    assert value[0].item() == sum(r for r in range(ranks) if r % 2 == rank % 2), "group"


def check_graphs(rank, ranks, device):
    value = torch.ones(1000, device=device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        dist.all_reduce(value)  # creates the communicator before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        dist.all_reduce(value)
    for round_ in range(3):
        value.fill_(float(round_ + 1))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert value[0].item() == (round_ + 1) * ranks, "graph"


def model_of():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def train(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def check_ddp(rank, ranks, device):
    torch.manual_seed(2)
    batches = [(torch.randn(32 * ranks, 64), torch.randint(10, (32 * ranks,))) for _ in range(20)]
    shares = [(inputs[32 * rank : 32 * (rank + 1)], targets[32 * rank : 32 * (rank + 1)]) for inputs, targets in batches]
    together = train(torch.nn.parallel.DistributedDataParallel(model_of().to(device)), shares, device)
    alone = train(model_of().to(device), batches, device)
    for ours, theirs in zip(together, alone):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), "DDP differs from one process"


def measure(rank, ranks, device, most_bytes):
    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize()

    calls = {
        "all_reduce": lambda whole, part: dist.all_reduce(whole),
        "all_gather": dist.all_gather_into_tensor,
        "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    }
    if dist.get_backend() == "gloo":
        del calls["reduce_scatter"]
    for name, call in calls.items():
        count = 256 * ranks
        while 4 * count <= most_bytes:
            whole = torch.zeros(count, device=device)
            part = torch.zeros(count // ranks, device=device)
            repeats = 100 if 4 * count <= 1 << 20 else 10
            for repeat in range(5 + repeats):
                if repeat == 5:
                    synchronize()
                    dist.barrier()
                    synchronize()
                    begin = time.perf_counter()
                call(whole, part)
            synchronize()
            if rank == 0:
                print(f"time {name} {4 * count} {(time.perf_counter() - begin) / repeats * 1e6:.2f}", flush=True)
            count *= 8


def run(rank, arguments, store):
    if arguments.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
    dist.init_process_group(arguments.backend, init_method=f"file://{store}", rank=rank, world_size=arguments.ranks,
                            timeout=datetime.timedelta(seconds=60))
    if arguments.times:
        measure(rank, arguments.ranks, device, arguments.most_bytes)
        dist.destroy_process_group()
        return
    checks = [check_collectives, check_groups, check_ddp]
    if arguments.device == "cuda":
        checks.insert(2, check_graphs)
    for check in checks:
        check(rank, arguments.ranks, device)
        dist.barrier()
        if rank == 0:
            print(f"{check.__name__}: {arguments.ranks} ranks, right", flush=True)
    dist.destroy_process_group()


def library():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sorted({line.split()[-1] for line in maps if "libnccl" in line})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--most-bytes", type=int, default=256 << 20, help="the largest message of --times")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU that this PyTorch can use")
        return 77
    print(f"torch {torch.__version__}, {arguments.backend}, libraries: {library()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(run, (arguments, os.path.join(folder, "store")), arguments.ranks)
        except mp.ProcessRaisedException as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
