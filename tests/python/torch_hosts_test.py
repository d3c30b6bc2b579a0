"""Tests of ranks on two machines, each with a hosts file in which its own name is 127.0.1.1, as some distributions do.

The ranks connect with MASTER_ADDR, a TCP store, or a file store. The machines are network namespaces (tests/machines).
Each rank runs this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from patience import scaled

HERE = Path(__file__).resolve()
MACHINES = HERE.parents[1] / "machines" / "with_machines.sh"
LIMIT_S = scaled(300)
OWN_HOSTS = "127.0.0.1 localhost\n127.0.1.1 first\n"  # on the machine that has this name
OTHER_HOSTS = "127.0.0.1 localhost\n10.77.0.1 first\n"


def test_names_that_are_loopback_at_home(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "MASTER_"))}
    environment["PYTHONPATH"] = str(HERE.parents[1] / "support")  # for the imports of this file
    words = [str(word) for word in (MACHINES, 2, sys.executable, HERE, "machines", tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for rank in range(2):
        for way in ("MASTER_ADDR", "tcp", "file"):
            assert f"rank {rank}: 3.0 by {way}" in done.stdout, done.stdout


def run_machines(folder: str) -> int:
    """Runs inside with_machines.sh. Starts one rank on each machine, with its own hosts file."""
    ranks: List[subprocess.Popen[bytes]] = []
    for rank, (machine, hosts) in enumerate(zip(os.environ["MACHINES"].split(), (OWN_HOSTS, OTHER_HOSTS))):
        file = Path(folder) / f"hosts.{rank}"
        file.write_text(hosts)
        with_hosts = f'mount --bind "{file}" /etc/hosts && exec "$@"'
        words = ["ip", "netns", "exec", machine, "bash", "-c", with_hosts, "bash"]
        words += [sys.executable, str(HERE), "rank", folder]
        ranks.append(subprocess.Popen(words, env=dict(os.environ, RANK=str(rank), OMP_NUM_THREADS="1")))
    return max(process.wait() for process in ranks)


def run_rank(folder: str) -> None:
    import torch
    import torch.distributed as dist
    import tutti.torch  # noqa: F401 (torch 1.13 does not find the backend by its name)

    rank = int(os.environ.pop("RANK"))

    def sum_up(way: str, method: str) -> None:
        dist.init_process_group("tutti", init_method=method, rank=rank, world_size=2)
        total = torch.full((3,), float(rank + 1))
        dist.all_reduce(total)
        print(f"rank {rank}: {total[0].item()} by {way}", flush=True)
        dist.destroy_process_group()

    sum_up("tcp", "tcp://first:29501")
    sum_up("file", f"file://{folder}/store")
    os.environ.update(MASTER_ADDR="first", MASTER_PORT="29502")
    sum_up("MASTER_ADDR", "env://")


if __name__ == "__main__":
    if sys.argv[1] == "machines":
        sys.exit(run_machines(sys.argv[2]))
    run_rank(sys.argv[2])
