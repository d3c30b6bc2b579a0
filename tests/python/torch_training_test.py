"""Tests of training with the backend "tutti". Each method must take the same steps as with gloo."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torch_ranks  # noqa: E402
from torch_ranks import tear_down  # noqa: E402, F401

STEPS = 3
_gloo: Any = None


def set_up(rank: int, size: int, folder: str) -> None:
    import tutti.torch  # noqa: F401

    global _gloo
    torch.set_num_threads(1)
    store = torch_ranks.store(folder, size)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    _gloo = dist.new_group(backend="gloo")


def groups() -> List[Any]:
    return [dist.distributed_c10d._get_default_group(), _gloo]


def network() -> Any:
    torch.manual_seed(1)
    first = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def train(model: Any, rank: int, optimizer: Any = None, steps: int = STEPS) -> List[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 32)), torch.randint(0, 8, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state(model: Any) -> List[Any]:
    """Returns all parameters, and all buffers (of BatchNorm), without sharding."""
    tensors = [*model.parameters(), *model.buffers()]
    return [t.full_tensor() if hasattr(t, "full_tensor") else t.detach().clone() for t in tensors]


def expect_close(one: Any, two: Any, size: int, close: float = 1e-5) -> None:
    """Two ranks must agree bit for bit. More ranks may differ by rounding, because they add in other orders."""
    tolerance = 0.0 if size == 2 else close
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def expect_same(rank: int, build: Callable[[Any], Any], size: int, close: float = 1e-5) -> None:
    """Trains with both groups. The results must be the same."""
    ended = []
    for group in groups():
        model = build(group)
        ended.append((train(model, rank), state(model)))
    for ours, theirs in zip(*ended):
        expect_close(ours, theirs, size, close)


def check_ddp(rank: int, size: int) -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        expect_same(rank, lambda group: DistributedDataParallel(network(), process_group=group, **options), size)
    small = {"bucket_cap_mb": 0.001}  # a bucket for nearly every parameter
    expect_same(rank, lambda group: DistributedDataParallel(network(), process_group=group, **small), size)


def check_ddp_no_sync(rank: int, size: int) -> None:
    ends = []
    for group in groups():
        model = DistributedDataParallel(network(), process_group=group)
        with model.no_sync():
            model(torch.full((4, 32), float(rank))).sum().backward()
        model(torch.ones(4, 32)).sum().backward()
        ends.append([p.grad.clone() for p in model.parameters()])
    for one, two in zip(*ends):
        torch.testing.assert_close(one, two)


def check_ddp_hooks(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):

        def build(group: Any) -> Any:
            model = DistributedDataParallel(network(), process_group=group)
            model.register_comm_hook(group, hook)
            return model

        expect_same(rank, build, size, 1e-3)  # in float16, another order rounds differently

    def build_power(group: Any) -> Any:
        model = DistributedDataParallel(network(), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model

    expect_same(rank, build_power, size)


def check_ddp_uneven(rank: int, size: int) -> None:
    ends = []
    for group in groups():
        model = DistributedDataParallel(network(), process_group=group)
        with model.join():
            for _ in range(1 + rank):
                model(torch.ones(4, 32)).sum().backward()
        ends.append([p.grad.clone() for p in model.parameters()])
    for one, two in zip(*ends):
        torch.testing.assert_close(one, two)


def check_sync_batch_norm_moments(rank: int, size: int) -> None:
    from torch.distributed.nn.functional import all_gather, all_reduce

    ends = []
    for group in groups():
        tensor = torch.full((4,), float(rank + 1), requires_grad=True)
        gathered = torch.stack(all_gather(tensor, group))
        (all_reduce(tensor * 2, group=group).sum() + (gathered**2).sum()).backward()
        ends.append(tensor.grad)
    torch.testing.assert_close(ends[0], ends[1])


def check_gradient_of_reduce_scatter(rank: int, size: int) -> None:
    from torch.distributed.nn.functional import reduce_scatter

    tensor = torch.full((4,), float(rank + 1), requires_grad=True)
    (reduce_scatter(torch.empty(4), [tensor * r for r in range(size)]).sum() * (rank + 1)).backward()
    torch.testing.assert_close(tensor.grad, torch.full((4,), float(sum(r * (r + 1) for r in range(size)))))


def mesh_of(group: Any, size: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(group, "cpu")


def check_fsdp2(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.device_mesh")  # older releases also have no FSDP2
    torch_ranks.needs_from("torch.distributed.fsdp", "fully_shard")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):

        def build(group: Any) -> Any:
            model = network()
            model[1] = nn.Identity()
            for layer in (model[0], model[3], model[5]):
                fully_shard(layer, mesh=mesh_of(group, size), mp_policy=policy)
            return fully_shard(model, mesh=mesh_of(group, size), mp_policy=policy)

        expect_same(rank, build, size)


def check_fsdp2_is_one_process(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.device_mesh")  # older releases also have no FSDP2
    torch_ranks.needs_from("torch.distributed.fsdp", "fully_shard")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 5))
    sharded = fully_shard(copy.deepcopy(plain), mesh=init_device_mesh("cpu", (size,)))
    torch.manual_seed(4)
    batches = torch.randn(size, 8, 16)
    nn.functional.mse_loss(sharded(batches[rank]), torch.ones(8, 5)).backward()
    nn.functional.mse_loss(plain(batches.view(-1, 16)), torch.ones(8 * size, 5)).backward()
    for one, two in zip(sharded.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad.full_tensor(), two.grad)


def check_zero_optimizer(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ends = []
    for group in groups():
        model = DistributedDataParallel(network(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=0.01)
        train(model, rank, optimizer)
        ends.append(state(model))
    for one, two in zip(*ends):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def check_dtensor(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.tensor", "distribute_tensor")
    ends = [dtensors_of(mesh_of(group, size), size) for group in groups()]
    expect_close(*ends, size)


def dtensors_of(mesh: Any, size: int) -> List[Any]:
    """Checks products and redistributions. Returns the products, and the weights after some training steps."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    torch.manual_seed(5)
    left, right = torch.randn(6, 10), torch.randn(10, 7)
    ends = []
    for placements in ((Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))):
        product = distribute_tensor(left, mesh, [placements[0]]) @ distribute_tensor(right, mesh, [placements[1]])
        ends.append(product.full_tensor())
        torch.testing.assert_close(ends[-1], left @ right)
    there = distribute_tensor(left, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)]).redistribute(mesh, [Shard(0)])
    summed = DTensor.from_local(left, mesh, [Partial()]).redistribute(mesh, [Shard(0)])
    for one, expected in ((there, left), (summed, left * size)):
        ends.append(one.full_tensor())
        torch.testing.assert_close(ends[-1], expected)
    for placement in (Shard(0), Shard(1), Replicate()):
        weight = nn.Parameter(distribute_tensor(right, mesh, [placement]))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (distribute_tensor(left, mesh, [Shard(0)]) @ weight).square().mean().backward()
            optimizer.step()
        ends.append(weight.full_tensor().detach())
    return ends


def check_meshes(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.device_mesh")
    from torch.distributed.device_mesh import init_device_mesh

    if size % 2:
        return
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    assert tensor.tolist() == [float(rank // 2 * 4 + 1)] * 3
    dist.all_reduce(tensor, group=mesh.get_group("outer"))
    assert tensor.tolist() == [float(sum(range(size)))] * 3


def check_tensor_parallel(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.tensor.parallel")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(6)
    plain = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
    split = copy.deepcopy(plain)
    parallelize_module(split, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    input = torch.randn(5, 12)
    split(input).sum().backward()
    plain(input).sum().backward()
    torch.testing.assert_close(split(input), plain(input))
    for one, two in zip(split.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad.full_tensor(), two.grad)


def check_pipeline(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.pipelining")
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(7)
    layers = [nn.Linear(6, 6) for _ in range(size)]
    whole = nn.Sequential(*copy.deepcopy(layers))
    input, target = torch.randn(8, 6), torch.randn(8, 6)
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(input)
    elif rank == size - 1:
        torch.testing.assert_close(schedule.step(target=target), whole(input))
    else:
        schedule.step()
    nn.functional.mse_loss(whole(input), target).backward()
    torch.testing.assert_close(layers[rank].weight.grad, whole[rank].weight.grad)


def functional(tensor: Any) -> Any:
    import torch.distributed._functional_collectives as functions

    group = dist.group.WORLD
    summed = functions.all_reduce(tensor, "sum", group)
    gathered = functions.all_gather_tensor(summed + 1, 0, group)
    return functions.reduce_scatter_tensor(gathered * 2, "avg", 0, group) + functions.broadcast(tensor, 0, group)


def check_functional(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed._functional_collectives")
    tensor = torch.full((4, 3), float(rank))
    expected = torch.full((4, 3), (sum(range(size)) + 1) * 2.0)
    torch.testing.assert_close(functional(tensor), expected)


def check_compile(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(torch, "compile"), "torch.compile")
    tensor = torch.full((4, 3), float(rank))
    expected = torch.full((4, 3), (sum(range(size)) + 1) * 2.0)
    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(functional, backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(tensor), expected)
        torch._dynamo.reset()


def check_compiled_step(rank: int, size: int) -> None:
    """Training steps with functional collectives must give the same result as with gloo."""
    torch_ranks.needs(hasattr(torch, "compile"), "torch.compile")
    torch_ranks.needs_from("torch.distributed._functional_collectives")
    import torch.distributed._functional_collectives as functions

    torch.manual_seed(8)
    weight = torch.randn(10 * size, 7)
    torch.manual_seed(rank)
    inputs, targets = torch.randn(16, 10 * size), torch.randn(16, 7)
    for backend in ("aot_eager", "inductor"):
        ends = []
        for group in groups():

            def step(weight: Any) -> Any:
                gradient = inputs.t() @ (inputs @ weight - targets)
                part = functions.reduce_scatter_tensor(gradient, "sum", 0, group) / size
                whole = functions.all_gather_tensor(part, 0, group)
                norm = functions.all_reduce(part.square().sum(), "sum", group).sqrt()
                return weight - 0.1 * whole / norm

            trained = weight
            compiled = torch.compile(step, backend=backend, fullgraph=True)
            for _ in range(STEPS):
                trained = compiled(trained)
            ends.append(trained)
            torch._dynamo.reset()
        expect_close(*ends, size)


def check_compiled_ddp(rank: int, size: int) -> None:
    torch_ranks.needs(hasattr(torch, "compile"), "torch.compile")

    def build(group: Any) -> Any:
        return torch.compile(DistributedDataParallel(network(), process_group=group), backend="aot_eager")

    expect_same(rank, build, size)
    torch._dynamo.reset()


def check_checkpoint(rank: int, size: int) -> None:
    torch_ranks.needs_from("torch.distributed.checkpoint")
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    folder: List[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    mesh = init_device_mesh("cpu", (size,))
    values = torch.arange(40.0).view(10, 4)
    checkpoint.save({"x": distribute_tensor(values, mesh, [Shard(0)])}, checkpoint_id=folder[0])
    loaded = {"x": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)])}
    checkpoint.load(loaded, checkpoint_id=folder[0])
    torch.testing.assert_close(loaded["x"].full_tensor(), values)


def check_profiler(rank: int, size: int) -> None:
    ones = torch.ones(1 << 18)
    other = torch.ones(3)
    peer = (rank + 1) % size
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(ones)
        work = dist.all_reduce(ones, async_op=True)
        work.wait()
        dist.broadcast(ones, 0)
        transfers = [dist.isend(ones[:5], peer), dist.irecv(torch.ones(5), (rank - 1) % size)]
        for transfer in transfers:
            transfer.wait()
        with pytest.raises(Exception):
            dist.all_reduce(torch.ones(3, device="meta"))
    events = {event.key: event for event in profiler.key_averages()}
    counts = {name: events[f"tutti:{name}"].count for name in ("all_reduce", "broadcast", "send", "recv")}
    assert counts == {"all_reduce": 2, "broadcast": 1, "send": 1, "recv": 1}, counts
    assert events["tutti:all_reduce"].cpu_time_total > 0
    dist.all_reduce(other)  # works without a profiler as before


def check_profiler_events_end_with_the_call(rank: int, size: int) -> None:
    """They must not end with the future, because its thread may run after the profiler has been destroyed."""
    group = dist.distributed_c10d._get_default_group()
    held: List[Any] = []
    for thread in (group._futures, group._transfer_futures):
        thread.add = held.append
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            if rank == 1:
                time.sleep(0.3)
            begun = time.monotonic()
            work = dist.all_reduce(torch.ones(3), async_op=True)
            transfers = [dist.isend(torch.ones(5), (rank + 1) % size), dist.irecv(torch.ones(5), (rank - 1) % size)]
            for each in (work, *transfers):
                each.wait()
            waited_us = 1e6 * (time.monotonic() - begun)
            time.sleep(0.5)
    finally:
        for thread in (group._futures, group._transfer_futures):
            del thread.add
    assert not held, "an event waits for a thread"
    lasted = {event.name: event.time_range.elapsed_us() for event in profiler.events() if "tutti:" in event.name}
    assert set(lasted) == {"tutti:all_reduce", "tutti:send", "tutti:recv"}, lasted
    assert all(0 < each < waited_us + 2.5e5 for each in lasted.values()), (lasted, waited_us)


CHECKS = torch_ranks.checks_of(sys.modules[__name__])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [2, 3])
def test_training(size: int, name: str) -> None:
    torch_ranks.expect(size, __file__, CHECKS, name, {"TORCHINDUCTOR_COMPILE_THREADS": "1"})
