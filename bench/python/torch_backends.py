"""Compares torch.distributed with Tutti and with gloo: in the same processes, in turn, with checked results.

    python bench/python/torch_backends.py [--ranks 2,4,8] [--collectives all_reduce,...] [--most 64M] [--seconds 0.3]
                                          [--busy-loops K] [--session-loops K] [--quota-percent P]
                                          [--json FILE] [--markdown FILE]

For each size the backends run in turn in several rounds, so that other load of the machine affects both. The time of a
round is the mean of its calls; the result is the median of the rounds on the slowest rank. Sizes are the bytes of one
rank's tensor (all_reduce, broadcast), of the whole output (all_gather), or of the whole input (reduce_scatter,
all_to_all). With --busy-loops, K processes of another session compute meanwhile, and with --session-loops, K of the
ranks' own session. With --quota-percent, the ranks may use P percent of all cores together (a cgroup; needs root). The
exit status is 1 if Tutti is slower than gloo in some measurement (these measurements are listed), or if a rank fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "compare"))
from cases import Load  # noqa: E402
from load import JobLoad  # noqa: E402

BACKENDS = ("tutti", "gloo")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
OF_ONE_TENSOR = ("all_reduce", "broadcast")  # their tensors are not divided among the ranks
ROUNDS = 7


def sizes_up_to(most: int) -> List[int]:
    sizes = [8 * 8**i for i in range(9)]
    return [size for size in sizes if size < most] + [most]


def parse_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def size_text(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


# ---- one rank


def call_of(name: str, size: int, group: Any) -> "tuple[Callable[[], None], Callable[[], None]]":
    """The call, and a function that checks its result. All sums of the values are exact in float32."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(max(size // 4 // ranks, 1) * ranks)
    part = whole.numel() // ranks
    if name == "all_reduce":
        tensor = torch.empty(max(size // 4, 1))

        def check_sum() -> None:
            tensor.fill_(rank + 1.0)
            dist.all_reduce(tensor, group=group)
            assert bool((tensor == ranks * (ranks + 1) / 2).all()), "all_reduce is wrong"
            tensor.zero_()

        return lambda: dist.all_reduce(tensor, group=group), check_sum
    if name == "broadcast":
        values = torch.empty(max(size // 4, 1))

        def check_broadcast() -> None:
            values.fill_(rank + 7.0)
            dist.broadcast(values, 0, group=group)
            assert bool((values == 7.0).all()), "broadcast is wrong"

        return lambda: dist.broadcast(values, 0, group=group), check_broadcast
    mine = torch.full((part,), float(rank))
    by_block = torch.arange(float(ranks)).repeat_interleave(part)
    if name == "all_gather":

        def check_gathered() -> None:
            dist.all_gather_into_tensor(whole, mine, group=group)
            assert torch.equal(whole, by_block), "all_gather is wrong"

        return lambda: dist.all_gather_into_tensor(whole, mine, group=group), check_gathered
    if name == "reduce_scatter":

        def check_scattered() -> None:
            dist.reduce_scatter_tensor(mine, by_block, group=group)
            assert bool((mine == rank * ranks).all()), "reduce_scatter is wrong"

        return lambda: dist.reduce_scatter_tensor(mine, by_block, group=group), check_scattered

    def check_exchanged() -> None:
        dist.all_to_all_single(whole, torch.full_like(whole, float(rank)), group=group)
        assert torch.equal(whole, by_block), "all_to_all is wrong"

    return lambda: dist.all_to_all_single(whole, by_block, group=group), check_exchanged


def seconds_of(call: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(name: str, size: int, groups: Dict[str, Any], seconds: float) -> Dict[str, float]:
    """Measures all backends: backend -> microseconds of the slowest rank. Collective."""
    import torch
    import torch.distributed as dist

    calls = {backend: call_of(name, size, group) for backend, group in groups.items()}
    counts = {}
    for backend, (call, check) in calls.items():
        check()
        seconds_of(call, 3)
        count = torch.tensor([max(2.0, min(2000.0, seconds / ROUNDS / seconds_of(call, 5)))])
        dist.broadcast(count, 0, group=groups["gloo"])
        counts[backend] = int(count.item())
    rounds: Dict[str, List[float]] = {backend: [] for backend in groups}
    for _ in range(ROUNDS):
        for backend, (call, _check) in calls.items():
            dist.barrier(group=groups[backend])
            rounds[backend].append(seconds_of(call, counts[backend]))
    for _call, check in calls.values():
        check()
    slowest = torch.tensor([statistics.median(rounds[backend]) for backend in groups])
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=groups["gloo"])
    return {backend: value * 1e6 for backend, value in zip(groups, slowest.tolist())}


def rank_main(folder: str, names: List[str], most: int, seconds: float) -> None:
    import warnings

    import torch
    import torch.distributed as dist
    import tutti.torch  # noqa: F401

    # torch 2.13 has renamed functions; this program also supports older releases
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for name in names:
        for size in sizes_up_to(most):
            if name not in OF_ONE_TENSOR and size < 4 * ranks:
                continue
            entry = {"collective": name, "ranks": ranks, "bytes": size, **measure(name, size, groups, seconds)}
            if rank == 0:
                with open(f"{folder}/results", "a") as file:
                    file.write(json.dumps(entry) + "\n")
    dist.destroy_process_group()


# ---- all of them


def run_ranks(ranks: int, arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--folder", folder, "--collectives", arguments.collectives, "--most", arguments.most]
        command = [sys.executable, os.path.abspath(__file__), *words, "--seconds", str(arguments.seconds)]
        processes = []
        with JobLoad(load_of(arguments)) as load:
            for rank in range(ranks):
                environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1")
                processes.append(subprocess.Popen(command, env=environment, preexec_fn=load.enter))
            codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{ranks} ranks: exit codes {codes}")
        with open(f"{folder}/results") as file:
            return [json.loads(line) for line in file]


def load_of(arguments: argparse.Namespace) -> Load:
    return Load(arguments.busy_loops, arguments.session_loops, arguments.quota_percent)


def table(entries: List[Dict[str, Any]], load: Load) -> str:
    import torch

    beside = f", {load.name}" if load else ""
    lines = [f"torch {torch.__version__}, {os.cpu_count()} cores{beside}, microseconds, median of {ROUNDS} rounds", ""]
    lines += ["| collective | ranks | bytes | tutti | gloo | times as quick |", "|---|---|---|---|---|---|"]
    for entry in entries:
        ratio = entry["gloo"] / entry["tutti"]
        where = f"| {entry['collective']} | {entry['ranks']} | {size_text(entry['bytes'])} "
        lines.append(f"{where}| {entry['tutti']:.1f} | {entry['gloo']:.1f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks (2,4,8)")
    parser.add_argument("--collectives", default="all_reduce", help=f"comma-separated, from {', '.join(COLLECTIVES)}")
    parser.add_argument("--most", default="64M", help="largest size")
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time for each size and backend")
    parser.add_argument("--busy-loops", type=int, default=0, metavar="K", help="K processes of another session compute")
    parser.add_argument("--session-loops", type=int, default=0, metavar="K", help="K of the ranks' session compute")
    parser.add_argument("--quota-percent", type=int, default=0, metavar="P", help="use at most P%% of the cores")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.collectives.split(",")
    if any(name not in COLLECTIVES for name in names):
        parser.error(f"collectives are {', '.join(COLLECTIVES)}")
    if arguments.folder:
        rank_main(arguments.folder, names, parse_bytes(arguments.most), arguments.seconds)
        return 0
    entries = [entry for ranks in arguments.ranks.split(",") for entry in run_ranks(int(ranks), arguments)]
    text = table(entries, load_of(arguments))
    print(text, end="")
    for path, content in ((arguments.markdown, text), (arguments.json, json.dumps(entries, indent=1) + "\n")):
        if path:
            with open(path, "w") as file:
                file.write(content)
    slower = [entry for entry in entries if entry["tutti"] > entry["gloo"]]
    for entry in slower:
        where = f"{entry['collective']} of {size_text(entry['bytes'])}, {entry['ranks']} ranks"
        print(f"slower than gloo: {where}: {entry['tutti']:.1f} us, gloo {entry['gloo']:.1f} us")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
