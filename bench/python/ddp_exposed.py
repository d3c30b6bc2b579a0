"""How long PyTorch's DistributedDataParallel waits for communication: with gloo, with Tutti, and with the shared heap.

    python bench/python/ddp_exposed.py [--ranks 2,4] [--models gpt,mlp] [--rounds 5] [--steps 20] [--json FILE]

The program of the ranks is an ordinary training with DDP. Between the three variants only the name of the backend
differs, and for `tutti_heap` the environment: LD_PRELOAD has the library of `python -m tutti.heap`. Each job trains in
turns of `--steps` steps, first with the exchange of gradients, then without (`no_sync()`), three times. The exposed
communication of a step is the difference of the two median times of a step, on the slowest rank. The variants run
in turn in each round, and the result is the median of the rounds. The models are `gpt`, that of bench/training
(3.5 MB of gradients), and `mlp`, with 34 MB of gradients. All variants must end with the same loss, up to rounding.
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
from typing import Any

VARIANTS = ("gloo", "tutti", "tutti_heap")
MODELS = ("gpt", "mlp")
TURNS = 3
WARM_UP = 3  # steps
BATCH = 8  # samples of a rank
HERE = Path(__file__).resolve().parent


def rank_main(variant: str, name: str, steps: int, folder: str) -> None:
    sys.path.insert(0, str(HERE.parent / "training"))
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch_ddp import Gpt, samples

    backend = variant.partition("_")[0]
    if backend == "tutti":
        import tutti.torch  # noqa: F401
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    torch.manual_seed(1)  # the same parameters and data in each variant
    if name == "gpt":
        model: nn.Module = Gpt()
        inputs, targets = samples("gpt")
    else:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 10))
        inputs, targets = torch.randn(512, 1024), torch.randint(10, (512,))
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(2 + rank)

    def step() -> float:
        drawn = torch.randint(len(inputs), (BATCH,))
        start = time.perf_counter()
        optimizer.zero_grad()
        scores = parallel(inputs[drawn])
        loss = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets[drawn].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return time.perf_counter() - start

    losses: list[float] = []
    with_exchange, without = [], []
    for _ in range(WARM_UP):
        step()
    final = 0.0
    for _ in range(TURNS):
        with_exchange += [step() for _ in range(steps)]
        final = losses[-1]
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        with parallel.no_sync():
            without += [step() for _ in range(steps)]
        # The ranks' parameters differ now. Go on with the former ones.
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), parameters):
                parameter.copy_(kept)
        dist.barrier()
    slowest = torch.tensor([statistics.median(with_exchange), statistics.median(without)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        step_s, alone_s = slowest.tolist()
        entry = {"step_ms": step_s * 1e3, "alone_ms": alone_s * 1e3, "exposed_ms": (step_s - alone_s) * 1e3}
        Path(folder, "result").write_text(json.dumps(entry | {"loss": final}))
    dist.destroy_process_group()


def run_job(variant: str, model: str, ranks: int, steps: int) -> dict[str, Any]:
    environment = dict(os.environ, WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1")
    if variant == "tutti_heap":
        heap = subprocess.run([sys.executable, "-m", "tutti.heap"], stdout=subprocess.PIPE, text=True, check=True)
        environment["LD_PRELOAD"] = heap.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), "--rank-of", variant, model, str(steps), folder]
        processes = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}) for rank in range(ranks)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{variant}, {model}, {ranks} ranks: exit codes {codes}")
        return json.loads(Path(folder, "result").read_text())


def table(entries: list[dict[str, Any]]) -> str:
    lines = ["| model | ranks | variant | step, ms | without exchange, ms | exposed, ms | of gloo's |"]
    lines.append("|---|---|---|---|---|---|---|")
    by_case: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for entry in entries:
        by_case.setdefault((entry["model"], entry["ranks"]), {}).setdefault(entry["variant"], []).append(entry)
    for (model, ranks), variants in by_case.items():
        exposed = {v: statistics.median(e["exposed_ms"] for e in runs) for v, runs in variants.items()}
        for variant, runs in variants.items():
            step, alone = (statistics.median(e[name] for e in runs) for name in ("step_ms", "alone_ms"))
            # If a step with the exchange takes no longer than one without, there is nothing to compare with.
            part = f"{exposed[variant] / exposed['gloo']:.2f}" if exposed["gloo"] > 0 else "-"
            lines.append(
                f"| {model} | {ranks} | {variant} | {step:.2f} | {alone:.2f} | {exposed[variant]:.2f} | {part} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (2,4)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"comma-separated, from {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (20)")
    parser.add_argument("--json", type=Path, help="file for the values of each round")
    parser.add_argument("--rank-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        variant, model, steps, folder = options.rank_of
        rank_main(variant, model, int(steps), folder)
        return 0
    if unknown := set(options.models.split(",")) - set(MODELS):
        parser.error(f"unknown model {', '.join(sorted(unknown))}: choose from {', '.join(MODELS)}")
    entries = []
    for number in range(options.rounds):
        for model in options.models.split(","):
            for ranks in map(int, options.ranks.split(",")):
                first = number % len(VARIANTS)
                for variant in VARIANTS[first:] + VARIANTS[:first]:
                    result = run_job(variant, model, ranks, options.steps)
                    entries.append({"round": number, "model": model, "ranks": ranks, "variant": variant} | result)
                losses = [entry["loss"] for entry in entries if (entry["model"], entry["ranks"]) == (model, ranks)]
                if max(losses) - min(losses) > 1e-3 * abs(losses[0]):
                    raise SystemExit(f"{model}, {ranks} ranks: the variants end with different losses: {losses}")
        print(f"round {number + 1} of {options.rounds} is done", file=sys.stderr, flush=True)
    print(table(sorted(entries, key=lambda entry: VARIANTS.index(entry["variant"]))))
    if options.json:
        options.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
