"""Helpers of the tests: ranks as threads of this process, and ranks as processes."""

import os
import pathlib
import subprocess
import sys
import threading
from typing import Any, Callable, List, Sequence

import pytest

import tutti

TREE = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("LAUNCHER_OF_RANKS", str(TREE / "build/dev/bin/tutti"))
sys.path.insert(0, str(TREE / "tests/support"))

from patience import scaled  # noqa: E402

LIMIT_S = scaled(60)


def on_ranks(size: int, function: Callable[[tutti.Communicator], Any], **options: Any) -> List[Any]:
    """Returns the results of `function` on each rank. Each rank has its own thread. Exceptions are re-raised."""
    communicators = tutti.Communicator.create_all(size, **options)
    results: List[Any] = [None] * size
    failures: List[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(communicators[rank])
        except BaseException as error:
            failures.append(error)
            communicators[rank].abort()  # so that the other ranks end as well

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if failures:
        raise failures[0]
    return results


def run_python(arguments: Sequence[str], *, ranks: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs a Python process, or `ranks` processes with `tutti run`. The output is text."""
    command = [sys.executable, *arguments]
    if ranks > 0:
        command = [TOOL, "run", "-n", str(ranks), "--", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints each skipped test in the form that scripts/check-skips reads, because ctest sees only the whole file."""
    for report in terminalreporter.stats.get("skipped", []):
        name = report.nodeid.split("::", 1)[-1]
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"inner skip: {name}: {' '.join(str(reason).split())}")


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Callable[[str], str]:
    """Returns a function that writes the text of a program to a file and returns the path of the file."""

    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write
