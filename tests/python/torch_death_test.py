"""A rank dies during training with the backend "tutti". The other ranks must soon get an error that names it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402

DIES = """
import os, signal, sys, time
import torch
import torch.distributed as dist
sys.path.insert(0, os.environ["TEST_PATH"])
import torch_ranks
import tutti.torch
from datetime import timedelta
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = torch_ranks.store(os.environ["TEST_FOLDER"], size)
limit = timedelta(seconds=float(os.environ["TEST_LIMIT_S"]))
dist.init_process_group("tutti", store=store, rank=rank, world_size=size, timeout=limit)
model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 200))
if os.environ["TEST_WAY"] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
step = 0
try:
    while True:
        loss = model(torch.ones(4, 200)).sum()
        if step == 5 and rank == 1:
            with open(os.environ["TEST_FOLDER"] + "/died", "w") as file:
                file.write(repr(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        step += 1
except RuntimeError as error:
    now = time.monotonic()  # the same clock in all processes
    print(f"step {step}, at {now!r} s: {type(error).__name__}: {error}")
    sys.exit(7)
"""
DEATH_LIMIT_S = 2 * PATIENCE_S  # the timeout of the group
# The time within which the survivors must report the death. We measured 0.02 to 0.3 s on two busy cores.
DEATH_TOLD_S = PATIENCE_S


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_dead_rank_is_named(way: str, size: int, capsys: Any) -> None:
    """It dies between a forward and a backward pass. The others must raise an error long before the timeout."""
    if way == "fsdp2":
        pytest.importorskip("torch.distributed.device_mesh", reason="this torch has no meshes, nor FSDP2")
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(size):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), TEST_FOLDER=folder, TEST_WAY=way)
            environment.update(TEST_PATH=str(Path(__file__).parent), TEST_LIMIT_S=str(DEATH_LIMIT_S))
            environment.update(OMP_NUM_THREADS="1")
            command = [sys.executable, "-c", DIES]
            pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen(command, env=environment, **pipes))
        codes = torch_ranks.wait_all(processes, torch_ranks.START_S)
        said = [process.communicate()[0] for process in processes]
        died = Path(folder, "died").read_text()
    assert codes[1] == -signal.SIGKILL
    told_s = []
    for rank in [rank for rank in range(size) if rank != 1]:
        assert codes[rank] == 7, f"rank {rank} ended with {codes[rank]}: {said[rank]}"
        assert "rank 1" in said[rank] and "lost" in said[rank].lower(), said[rank]
        told = re.search(r"step 5, at ([0-9.]+) s", said[rank])
        assert told is not None, said[rank]
        told_s.append(float(told.group(1)) - float(died))
    with capsys.disabled():
        words = ", ".join(f"{seconds:.3f}" for seconds in told_s)
        print(f"\n{way}, {size} ranks: the others knew of the death after {words} s", flush=True)
    assert max(told_s) < DEATH_TOLD_S, told_s
