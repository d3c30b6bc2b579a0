"""Starts the ranks of a test as processes, and collects their results.

A test file contains checks: functions with the name check_*(rank, size), which every rank calls in the order of the
file. Each rank is a process that runs this file. All checks of a test file share one start of the ranks, because
importing torch takes long. A file whose ranks need nothing else than a default group of the backend "tutti" imports
set_up() and tear_down() from here.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

HERE = Path(__file__).resolve()
START_S = 200  # in seconds; importing torch takes long on a busy machine
_SKIP = "skip: "


def start(size: int, file: str, names: List[str], folder: str, extra: Optional[Dict[str, str]] = None) -> List[Any]:
    """Starts a process for each of `size` ranks. Each calls the named functions of the file."""
    processes = []
    for rank in range(size):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1")
        environment.update(TEST_FOLDER=folder, **(extra or {}))
        command = [sys.executable, "-u", str(HERE), file, ",".join(names)]
        with open(f"{folder}/log.{rank}", "w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    return processes


def results(size: int, file: str, names: List[str], extra: Optional[Dict[str, str]] = None) -> Dict[str, List[str]]:
    """Returns, for each name, a text of each rank: "ok", "skip: reason", or the error. If a rank died, the text
    contains its exit code and log."""
    with tempfile.TemporaryDirectory() as folder:
        processes = start(size, file, names, folder, extra)
        codes = wait_all(processes, START_S)
        said: Dict[str, List[str]] = {name: [] for name in names}
        for rank in range(size):
            log = Path(f"{folder}/log.{rank}").read_text()
            told = read(f"{folder}/said.{rank}")
            for name in names:
                said[name].append(told.get(name, f"rank {rank} ended with {codes[rank]} before this:\n{log[-3000:]}"))
        return said


def wait_all(processes: List[Any], seconds: float) -> List[Optional[int]]:
    """Returns the exit codes. A process that does not end in time is killed, and its code is None."""
    deadline = time.monotonic() + seconds
    codes: List[Optional[int]] = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            codes.append(None)
    return codes


def read(path: str) -> Dict[str, str]:
    try:
        with open(path) as file:
            return {name: text for line in file for name, text in json.loads(line).items()}
    except FileNotFoundError:
        return {}


def checks_of(module: Any) -> List[str]:
    return [name for name in vars(module) if name.startswith("check_")]


_results: Dict[Any, Dict[str, List[str]]] = {}  # of each file and number of ranks


def expect(size: int, file: str, names: List[str], name: str, extra: Optional[Dict[str, str]] = None) -> None:
    """Expects that the check `name` of the file passes on `size` ranks. The first call for a file and a number of ranks
    runs all its checks, `names`."""
    if (file, size) not in _results:
        _results[file, size] = results(size, file, names, extra)
    expect_ok(_results[file, size][name])


def set_up(rank: int, size: int, folder: str) -> None:
    """Creates the default group."""
    import torch.distributed as dist
    import tutti.torch  # noqa: F401

    dist.init_process_group(
        "tutti", store=store(folder, size), rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )


def tear_down(rank: int, size: int) -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def same(one: Any, other: Any) -> None:
    import torch

    assert one.dtype == other.dtype and one.shape == other.shape, f"{one} {other}"
    assert torch.equal(one, other), f"{one} is not {other}"


def expect_ok(said: List[str]) -> None:
    if said and all(text.startswith(_SKIP) for text in said):
        raise unittest.SkipTest(said[0][len(_SKIP) :])  # pytest recognizes it as well
    wrong = [text for text in said if text != "ok"]
    if wrong:
        raise AssertionError("\n".join(wrong))


def needs(there: Any, what: str) -> None:
    """Skips the rest of the check if `there` is false. `what` names what this torch lacks."""
    if not there:
        raise unittest.SkipTest(f"this torch has no {what}")


def needs_from(module: str, *names: str) -> None:
    """The same for a module of torch and names in it."""
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as error:
        needs(error.name is None or not module.startswith(error.name), module)
        raise
    for name in names:
        needs(hasattr(there, name), f"{module}.{name}")


def store(folder: str, size: int) -> Any:
    """The common store of the ranks. It is a file, so it needs no port."""
    import torch.distributed as dist

    return dist.FileStore(f"{folder}/store", size)


def raises(kind: Any, function: Callable[[], Any], *words: str) -> Exception:
    """Checks that the function raises this type of exception with these words in its text. Returns the exception."""
    try:
        function()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return error
    raise AssertionError(f"{kind} was not raised")


def _rank_main(file: str, names: List[str]) -> int:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = os.environ["TEST_FOLDER"]
    spec = importlib.util.spec_from_file_location("checks", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["checks"] = module
    spec.loader.exec_module(module)
    failed = False
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames functions that older releases have
    faulthandler.dump_traceback_later(START_S - 5)
    if hasattr(module, "set_up"):
        module.set_up(rank, size, folder)
    with open(f"{folder}/said.{rank}", "a") as said:
        for name in names:
            try:
                getattr(module, name)(rank, size)
                text = "ok"
            except unittest.SkipTest as error:
                text = f"{_SKIP}{error}"
            except Exception:
                text = f"rank {rank}: {traceback.format_exc()}"
                failed = True
            said.write(json.dumps({name: text}) + "\n")
            said.flush()
    if hasattr(module, "tear_down"):
        module.tear_down(rank, size)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    sys.exit(_rank_main(sys.argv[1], sys.argv[2].split(",")))
