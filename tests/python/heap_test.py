"""Tests of the shared heap (docs/heap.md) in Python programs."""

import os
import subprocess
import sys

import pytest
from conftest import LIMIT_S, TOOL

import tutti.heap

# Prints the number of heaps, of this process and of other ranks, from which this process has mapped memory.
MAPPED = """
def mapped():
    lines = [line.split() for line in open("/proc/self/maps") if "/memfd:tutti heap" in line]
    return len({line[4] for line in lines})
"""

DDP = MAPPED + """
import os, sys
import torch, torch.distributed as dist, tutti.torch
from torch.nn.parallel import DistributedDataParallel

class Numbers(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs = torch.arange(256 * 300, dtype=torch.float32).reshape(256, 300) % 97 / 97
    def __len__(self):
        return 256
    def __getitem__(self, index):
        return self.inputs[index], self.inputs[index].sum()[None]

store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("tutti", store=store, rank=int(os.environ["TUTTI_RANK"]), world_size=2)
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
data = Numbers()
sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
loader = torch.utils.data.DataLoader(
    data, batch_size=32, sampler=sampler, num_workers=2, multiprocessing_context="fork")
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
bits = sum(int(p.detach().view(torch.int32).to(torch.int64).sum()) for p in model.parameters())
count = mapped()
dist.barrier()  # a rank that leaves withdraws its memory
print(f"{bits} {count}")
dist.destroy_process_group()
"""

NUMPY = MAPPED + """
import sys, numpy, tutti, tutti.heap
if sys.argv[1] == "heap":
    tutti.heap.use_for_numpy()
comm = tutti.Communicator()
array = numpy.full(500_000, comm.rank + 1, dtype=numpy.float32)
array = numpy.concatenate([array, array])
assert comm.all_reduce(array).tolist() == [3.0] * 1_000_000
array[:] = numpy.arange(1_000_000)
array.resize(1_500_000, refcheck=False)
assert (array[:1_000_000] == numpy.arange(1_000_000)).all() and array[1_000_000:].max() == 0
assert numpy.zeros(700_000).max() == 0
count = mapped()
comm.barrier()  # a rank that leaves withdraws its memory
print(count)
comm.finalize()
"""


def ranks(program, *arguments, heap=False):
    command = [TOOL, "run", "-n", "2", "--no-prefix"] + (["--shared-heap"] if heap else [])
    done = subprocess.run(
        [*command, "--", sys.executable, program, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_module_prints_the_path_of_the_library():
    done = subprocess.run([sys.executable, "-m", "tutti.heap"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.strip() == tutti.heap.path and os.path.exists(tutti.heap.path)


def test_ddp_with_forked_workers_has_the_same_bits(script, tmp_path):
    program = script(DDP)
    with_heap = ranks(program, str(tmp_path / "heap_store"), heap=True)
    without = ranks(program, str(tmp_path / "plain_store"))
    assert [line.split()[1] for line in with_heap] == ["2", "2"]
    assert [line.split()[1] for line in without] == ["0", "0"]
    assert {line.split()[0] for line in with_heap} == {line.split()[0] for line in without}
    assert len({line.split()[0] for line in with_heap}) == 1


@pytest.mark.parametrize(("mode", "preload", "heaps"), [("heap", False, "2"), ("heap", True, "2"), ("plain", False, "0")])
def test_numpy_arrays_can_come_from_the_heap(script, mode, preload, heaps):
    assert ranks(script(NUMPY), mode, heap=preload) == [heaps, heaps]
