"""Two models of `tutti train` in PyTorch, trained with DistributedDataParallel over Gloo. Measures only throughput.

    build/python/bin/torchrun --standalone --nproc-per-node 2 bench/training/torch_ddp.py cnn --steps 60 --json FILE

measure.py starts it. The models have the same layers and numbers of parameters as those of Tutti (train/models.h). The
optimizer is SGD with momentum 0.9, as in the section `speed` of sections.py. The data are generated tensors with the
shapes of the real data. Everything else has DDP's defaults, unless --bucket-mb is given. Rank 0 writes a log like that
of `tutti train --json` after the last step. The time of a step includes loading, forward and backward pass, the update,
and reading the loss.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

_VOCABULARY, _CONTEXT, _WIDTH, _HEADS, _BLOCKS = 256, 64, 128, 4, 4
_SAMPLES = 4096  # samples from which a rank draws its batches
_PARAMETERS = {"cnn": 1_199_882, "gpt": 867_328}


def cnn() -> nn.Module:
    """1 x 28 x 28 -> 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.projection = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, context, width] -> [batch, context, width]."""
        batch, context, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, context, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, context, _WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))  # gelu with erf, not with tanh


class Gpt(nn.Module):
    """Bytes [batch, context] -> [batch, context, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


_MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "gpt": Gpt}


def samples(model: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all samples."""
    if model == "cnn":
        return torch.randn(_SAMPLES, 1, 28, 28), torch.randint(10, (_SAMPLES,))
    text = torch.randint(_VOCABULARY, (_SAMPLES, _CONTEXT + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def train(options: argparse.Namespace, model: DistributedDataParallel, rank_batch: int) -> list[dict[str, Any]]:
    """Trains, and returns the records of all steps on this rank."""
    inputs, targets = samples(options.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    records = []
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        drawn = torch.randint(_SAMPLES, (rank_batch,))
        batch, wanted = inputs[drawn], targets[drawn]
        loaded = time.perf_counter()
        optimizer.zero_grad()
        scores = model(batch)
        loss = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1))
        loss.backward()
        optimizer.step()
        value = loss.item()
        end = time.perf_counter()
        records.append({"record": "step", "step": step, "loss": value, "load_s": loaded - start, "step_s": end - start})
    return records


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)  # the same initial parameters on all ranks; DDP would also ensure this
    model = _MODELS[options.model]()
    parameters = sum(each.numel() for each in model.parameters())
    if parameters != _PARAMETERS[options.model]:
        raise AssertionError(f"{options.model} has {parameters} parameters, not {_PARAMETERS[options.model]}")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.batch % ranks != 0:
        raise SystemExit(f"torch_ddp: a batch of {options.batch} is not a multiple of {ranks} ranks")
    torch.manual_seed(options.seed + 1 + rank)  # seed of the data
    records = train(options, DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb), options.batch // ranks)
    seconds = sum(record["step_s"] for record in records)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        run = {"record": "run", "model": options.model, "parameters": parameters, "strategy": "ddp", "ranks": ranks}
        run |= {"batch": options.batch, "threads": options.threads, "torch": torch.__version__}
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of rank 0
        result = {"record": "result", "loss": records[-1]["loss"], "seconds": seconds, "peak_bytes": peak_bytes}
        result["samples_per_s"] = options.batch * options.steps / seconds
        _write(options.json, [run, *records, result])
    return 0


def _write(path: Path | None, records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torch_ddp.py", description="Train the models of tutti train by PyTorch DDP")
    add = parser.add_argument
    add("model", choices=tuple(_MODELS))
    add("--batch", type=_positive, default=64, help="samples per step, of all ranks together (64)")
    add("--steps", type=_positive, default=60)
    add("--lr", type=float, default=0.01)
    add("--seed", type=int, default=1)
    add("--threads", type=_positive, default=1, help="threads of each rank (1)")
    add("--bucket-mb", type=float, help="size of DDP's buckets (default: 1 for the first, 25 for the others)")
    add("--json", type=Path, help="file for the log (default: standard output)")
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: build/python/bin/torchrun --standalone --nproc-per-node 2 ...")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
