"""Runs torch's own distributed tests, which its wheel contains, with Tutti. Tests that fail are also run with gloo.

    python torch_suite.py [--only TEXT] [--ways gloo,as-gloo,tutti] [--results FILE] [--seconds 90]

`tutti` uses the backend's own name, so torch skips tests that it has only for gloo or NCCL. `as-gloo` replaces gloo by
Tutti, so that every test for gloo runs with Tutti. Each test starts 3 processes.

The exit code is 1 if a test passes with gloo but not with Tutti. Exceptions are the tests in NOT_OURS that fail in the
described way; these are printed with the reason. The program needs the package expecttest. It keeps its results in
FILE, and does not run tests again that have a result there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional, Tuple

PREFIX = "TestDistBackendWithSpawn."

# Tests that pass over gloo and cannot pass over any other backend: the name of the test, the reason, and a pattern
# for the text of the failure. A failure with another text is an error of Tutti.
_WORDS = "looks for gloo's text in the error; ours names the ranks that did not enter the call"
_EVENTS = "looks for gloo's events in torch's profiler; ours have other names and no shapes"
_LATE = r"( made no progress for \d+ ms: not entered by rank|: rank \d)"
_BARRIER = r'does not match "(timeout|peer lost): barrier #\d+ \(\w+\)' + _LATE
_NO_EVENTS = r"(?s)_profiler\n.*AssertionError: Scalars are not equal!\n\nExpected \d+ but got \d+\.\n"
_CRASH = r"but got -\d+ for pid|terminated with signal"  # none of the known failures ends like this
NOT_OURS: Dict[str, Tuple[str, str]] = {
    "test_barrier_timeout_full_group": (_WORDS, _BARRIER),
    "test_monitored_barrier_gloo": (_WORDS, _BARRIER),
    "test_monitored_barrier_gloo_rank_0_timeout": (_WORDS, _BARRIER),
    "test_monitored_barrier_gloo_subgroup": (_WORDS, _BARRIER),
    "test_ddp_logging_data_cpu": ("looks for gloo's name in the log", "String comparison failed: 'tutti' != 'gloo'"),
    "test_isend_autograd_profiler": (_EVENTS, _NO_EVENTS),
    "test_isend_torch_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_any_source_autograd_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_any_source_torch_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_autograd_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_torch_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_with_tag_autograd_profiler": (_EVENTS, _NO_EVENTS),
    "test_send_recv_with_tag_torch_profiler": (_EVENTS, _NO_EVENTS),
}


def not_ours(test: str, why: str) -> Optional[str]:
    """Returns the reason if this is the known failure of the test."""
    reason, words = NOT_OURS.get(test, ("", ""))
    return reason if words and re.search(words, why) and not re.search(_CRASH, why) else None


def _put_in_gloos_place() -> None:
    import torch.distributed as dist
    import tutti.torch

    dist.distributed_c10d.ProcessGroupGloo = tutti.torch.ProcessGroupTutti
    dist.ProcessGroupGloo = tutti.torch.ProcessGroupTutti


def _load() -> Any:
    """Returns the test case. The processes of a test are forked from this one, so they need not import torch again."""
    if os.environ["SUITE_WAY"] != "gloo":
        import tutti.torch  # noqa: F401
    if os.environ["SUITE_WAY"] == "as-gloo":
        _put_in_gloos_place()
    import torch.multiprocessing
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    distributed_test.PROFILING_SUPPORTED_BACKENDS = []  # these tests also look for shapes of tensors in events
    if os.environ["SUITE_WAY"] == "tutti":
        for feature in ("ddp", "subgroup", "cuda", "gpu"):
            common_distributed.DistTestCases.backend_feature[feature].add("tutti")

    class TestDistBackendWithSpawn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    TestDistBackendWithSpawn.__qualname__ = "TestDistBackendWithSpawn"

    return TestDistBackendWithSpawn


if "SUITE_WAY" in os.environ:
    TestDistBackendWithSpawn = _load()


class _Writer(unittest.TestResult):
    """Appends the outcome of each test to the file of results."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def _write(self, test: Any, end: str, why: str) -> None:
        with open(self._path, "a") as file:
            entry = {"way": os.environ["SUITE_WAY"], "test": test.id().split(".")[-1], "end": end, "why": why[-3000:]}
            file.write(json.dumps(entry) + "\n")

    def addSuccess(self, test: Any) -> None:
        self._write(test, "pass", "")

    def addSkip(self, test: Any, reason: str) -> None:
        self._write(test, "skip", reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._write(test, "fail", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure


def _run_here(names: List[str], path: str) -> None:
    """Runs all named tests in this process, one after the other, because starting torch takes long."""
    result = _Writer(path)
    for name in names:
        unittest.TestSuite([TestDistBackendWithSpawn(name)]).run(result)


def _ended(path: str, way: str) -> Dict[str, Dict[str, str]]:
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        entries = [json.loads(line) for line in file]
    return {entry["test"]: entry for entry in entries if entry["way"] == way}


def _run_way(way: str, names: List[str], path: str, seconds: int) -> None:
    while True:
        left = [name for name in names if name not in _ended(path, way)]
        if not left:
            return
        with tempfile.TemporaryDirectory() as folder:
            for part in ("barrier", "init_dir"):
                os.mkdir(f"{folder}/{part}")
            environment = dict(
                os.environ,
                SUITE_WAY=way,
                BACKEND="tutti" if way == "tutti" else "gloo",
                WORLD_SIZE="3",
                TEMP_DIR=folder,
                OMP_NUM_THREADS="1",
                DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(seconds),
            )
            command = [sys.executable, os.path.abspath(__file__), "--here", ",".join(left[:20]), "--results", path]
            with open(path + ".log", "a") as log:
                subprocess.run(command, env=environment, stdout=log, stderr=log)
        if left[0] not in _ended(path, way):  # the test ended its process
            with open(path, "a") as file:
                why = "the process of the test ended without a result"
                file.write(json.dumps({"way": way, "test": left[0], "end": "fail", "why": why}) + "\n")


def _names(only: str) -> List[str]:
    environment = dict(os.environ, SUITE_WAY="gloo", BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR="/tmp")
    names = "unittest.TestLoader().getTestCaseNames(torch_suite.TestDistBackendWithSpawn)"
    script = f"import torch_suite, unittest; print(*{names})"
    folder = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    return [name for name in done.stdout.split() if only in name]


def _fails(path: str, ways: List[str], name: str) -> bool:
    return any(_ended(path, way)[name]["end"] == "fail" for way in ways if way != "gloo")


def _report(path: str, ways: List[str]) -> int:
    wrong = 0
    ends = {way: _ended(path, way) for way in ["gloo", *ways]}
    for way, entries in ends.items():
        counts = {end: sum(entry["end"] == end for entry in entries.values()) for end in ("pass", "skip", "fail")}
        print(f"{way}: {counts['pass']} pass, {counts['skip']} skipped, {counts['fail']} fail")
    for way in ways:
        if way == "gloo":
            continue  # gloo is the reference for the others
        for test, entry in ends[way].items():
            if entry["end"] != "fail" or ends["gloo"].get(test, {}).get("end") != "pass":
                continue
            reason = not_ours(test, entry["why"])
            last = entry["why"].strip().splitlines()[-1:] or [""]
            print(f"  {way} {test}: {reason or last[0]}")
            wrong += reason is None
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tests with this in their name")
    parser.add_argument("--ways", default="gloo,as-gloo,tutti")
    parser.add_argument("--results", default="torch_suite.jsonl")
    parser.add_argument("--seconds", type=int, default=90, help="for one test")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = os.path.abspath(arguments.results)
    if any(importlib.util.find_spec(name) is None for name in ("torch", "expecttest")):
        print("skipped: torch or expecttest is missing; scripts/setup --python installs them")
        return 77
    if importlib.util.find_spec("tutti") is None:
        print("FAILED: there is no package tutti; scripts/build-python builds and installs it")
        return 1
    if arguments.here:
        _run_here(arguments.here.split(","), path)
        return 0
    names = _names(arguments.only)
    ways = arguments.ways.split(",")
    for way in sorted(ways, key="gloo".__eq__):
        if way == "gloo" and len(ways) > 1:  # gloo is needed only for tests in which Tutti fails
            names = [name for name in names if _fails(path, ways, name)]
        _run_way(way, names, path, arguments.seconds)
    return _report(path, ways)


if __name__ == "__main__":
    sys.exit(main())
