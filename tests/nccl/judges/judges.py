#!/usr/bin/env python3
"""Judges libnccl.so.2 by programs, packages and libraries that others made for NCCL. None of it needs a GPU.

judges.py --library FILE --cache FOLDER [--report FILE] [JUDGE...]

It downloads packages from PyPI into the cache, about 2.6 GB, and unpacks 1.5 GB of them. Most of it is the torch wheel
and NVIDIA's wheels with the headers. Files that are there already are used again. With SETUP_NO_INSTALL=1 it downloads
nothing. JUDGE is one of:

  header      NVIDIA's nccl.h of our version: every declaration, macro, enumerator and structure; and its library: ours
              exports the same functions, and nothing else
  programs    a C program (program.c), compiled with the headers of six versions of NCCL
  nccl4py     NVIDIA's Python package
  cupy        CuPy's wrapper
  pynccl      vLLM's wrapper
  extensions  the symbols that NVIDIA's nccl-extensions import
  torch       the symbols that PyTorch's CUDA wheel imports

Each check is a line "ok JUDGE: NAME" or "not ok JUDGE: NAME: REASON". A judge whose packages cannot be downloaded makes
no check, and has a line "skipped JUDGE: REASON". The last line has the counts. --report writes a table. Exit status: 0
if all checks are right, 1 if not, 77 if a judge was skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

HERE = Path(__file__).resolve().parent
LIMIT_S = 600  # for one program: vLLM's wrapper imports torch, which may take a minute on a busy machine
SKIPPED = 77
NVIDIA = "nvidia-nccl-cu13==2.32.3"
PROGRAMS = ["nvidia-nccl-cu12==2.18.1", "nvidia-nccl-cu12==2.23.4", "nvidia-nccl-cu12==2.27.7",
            "nvidia-nccl-cu12==2.28.9", "nvidia-nccl-cu12==2.30.7", NVIDIA]
PATHFINDER = "cuda-pathfinder==1.9.1"
NCCL4PY = ["nccl4py==0.6.0", "cuda-core==1.2.2", "cuda-bindings==13.5.0", PATHFINDER]
CUPY = ["cupy-cuda13x==14.2.0", PATHFINDER]
VLLM = "vllm==0.33.0"
EXTENSIONS = "nccl-extensions==0.1.0"
TORCH = "torch===2.13.0"  # ===: not a local version such as 2.13.0+cpu
NEEDED = {"header": [NVIDIA], "programs": PROGRAMS, "nccl4py": NCCL4PY, "cupy": CUPY, "pynccl": [VLLM],
          "extensions": [EXTENSIONS], "torch": [TORCH]}
# The headers include CUDA's, but use only these names of them.
CUDA_STAND_INS = {
    "cuda_runtime.h": "#pragma once\n#include <stddef.h>\n#define CUDART_VERSION 13000\n"
                      "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n",
    "cuda_fp16.h": "", "cuda_bf16.h": "", "cuda_fp8.h": "",
}


class CannotDownload(Exception):
    """A package cannot be downloaded."""


@dataclass
class Judged:
    """The checks of one judge: names of those that are right, and "NAME: REASON" of the others."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, name: str, reason: str | None) -> None:
        if reason is None:
            self.right.append(name)
        else:
            self.wrong.append(f"{name}: {' | '.join(reason.split(chr(10)))}")  # on one line, as scripts/test reads it


class Packages:
    """Downloads wheels into a folder and unpacks parts of them."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def wheel(self, requirement: str) -> Path:
        name, version = re.split("={2,3}", requirement)
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        if not list(self.cache.glob(pattern)):
            if os.environ.get("SETUP_NO_INSTALL") == "1":
                raise CannotDownload(f"{requirement} is missing, and SETUP_NO_INSTALL=1 forbids to download it")
            print(f"downloading {requirement}", flush=True)
            # Into a folder of its own, because pip leaves a part of the file if it is interrupted.
            into = self.cache / "downloading"
            shutil.rmtree(into, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                       "--dest", str(into), requirement]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                for file in into.glob("*.whl"):
                    os.replace(file, self.cache / file.name)
            else:
                raise CannotDownload(f"{requirement}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return next(self.cache.glob(pattern))

    def folder(self, kind: str, requirements: list[str]) -> Path:
        """A folder for unpacked files; its name has the versions, so that it never has files of other ones."""
        return self.cache / "-".join([kind, *(requirement.split("=")[-1] for requirement in requirements)])

    def unpack(self, requirement: str, into: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
        with zipfile.ZipFile(self.wheel(requirement)) as archive:
            for entry in archive.infolist():
                there = into / entry.filename
                # A run that was interrupted may have left a part of the file.
                if wanted(entry.filename) and not (there.exists() and there.stat().st_size == entry.file_size):
                    archive.extract(entry, into)

    def headers(self, requirement: str) -> Path:
        """The folder with NVIDIA's nccl.h, and with stand-ins for CUDA's headers."""
        into = self.folder("headers", [requirement])
        self.unpack(requirement, into, lambda name: "/include/" in name)
        include = into / "nvidia/nccl/include"
        for name, text in CUDA_STAND_INS.items():
            (include / name).write_text(text, encoding="utf-8")
        return include


def all_symbols(file: Path, which: str) -> set[str]:
    """The dynamic symbols of a library; `which` is --defined-only or --undefined-only."""
    listed = subprocess.run(["nm", "-D", which, str(file)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line}


def symbols(file: Path, which: str) -> set[str]:
    """NCCL's names among them."""
    return {name for name in all_symbols(file, which) if re.match("p?nccl[A-Z]", name)}


def run_to_the_end(command: list[str], environment: dict[str, str]) -> tuple[int | None, str, str]:
    """Runs a program, and ends it with all processes that it has started if it takes longer than LIMIT_S, or if this
    program is ended. Returns its status (None: it took too long), its output and its error output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


class Judge:
    """Runs the judges. Each method `judge_NAME` returns its checks."""

    def __init__(self, library: Path, packages: Packages) -> None:
        self.tested = library
        self.packages = packages
        self.ours = symbols(library, "--defined-only")

    def take_lines(self, judged: Judged, command: list[str], name: str = "") -> None:
        """Runs a program that prints "ok NAME" and "not ok NAME: REASON", and takes these checks."""
        # CuPy and nccl4py would prefer NVIDIA's library, if a wheel with it is installed beside PyTorch.
        environment = dict(os.environ, TUTTI_MEASURE="0", LD_PRELOAD=str(self.tested))
        status, out, err = run_to_the_end(command, environment)
        for line in out.splitlines():
            if line.startswith("ok "):
                judged.right.append(name + line[3:])
            elif line.startswith("not ok "):
                judged.wrong.append(name + line[7:])
        ended = f"does not end within {LIMIT_S} s" if status is None else f"status {status}"
        judged.check(f"{name}ends", None if status == 0 else f"{ended}: {err[-2000:]}")

    def judge_header(self) -> Judged:
        judged = Judged()
        into = self.packages.folder("library", [NVIDIA])
        self.packages.unpack(NVIDIA, into, lambda name: name.endswith("libnccl.so.2"))
        theirs = symbols(into / "nvidia/nccl/lib/libnccl.so.2", "--defined-only")
        for name in sorted(theirs):
            judged.check(f"exports {name}", None if name in self.ours else "missing")
        extra = sorted(all_symbols(self.tested, "--defined-only") - theirs)
        judged.check("exports nothing else", f"foreign: {' '.join(extra)}" if extra else None)
        command = [sys.executable, str(HERE.parent / "abi.py"), "--ours", str(HERE.parents[2] / "include"),
                   "--compiler", "c++", "--library", str(self.tested),
                   str(self.packages.headers(NVIDIA) / "nccl.h")]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout.strip())
        judged.check("nccl.h declares the same", None if done.returncode == 0 else done.stdout + done.stderr)
        return judged

    def judge_programs(self) -> Judged:
        judged = Judged()
        folder = self.tested.parent
        for requirement in PROGRAMS:
            version = requirement.split("=")[-1]
            program = self.packages.cache / f"program-{version}"
            command = ["cc", "-std=gnu99", f"-I{self.packages.headers(requirement)}",
                       str(HERE / "program.c"), "-o", str(program), f"-L{folder}", "-lnccl", f"-Wl,-rpath,{folder}"]
            done = subprocess.run(command, capture_output=True, text=True)
            judged.check(f"{version}: compiles", None if done.returncode == 0 else done.stderr[-2000:])
            if done.returncode == 0:
                self.take_lines(judged, [str(program)], f"{version}: ")
        return judged

    def judge_wrapper(self, name: str, requirements: list[str],
                      wanted: Callable[[str], bool] = lambda _: True) -> Judged:
        judged = Judged()
        site = self.packages.folder(name, requirements)
        for requirement in requirements:
            self.packages.unpack(requirement, site, wanted)
        command = [sys.executable, str(HERE / "wrappers.py"), name, "--site", str(site), "--library", str(self.tested)]
        self.take_lines(judged, command)
        return judged

    def judge_nccl4py(self) -> Judged:
        return self.judge_wrapper("nccl4py", NCCL4PY)

    def judge_cupy(self) -> Judged:
        return self.judge_wrapper("cupy", CUPY)

    def judge_pynccl(self) -> Judged:
        wrapper = "vllm/distributed/device_communicators/pynccl_wrapper.py"
        return self.judge_wrapper("pynccl", [VLLM], lambda name: name == wrapper)

    def judge_imports(self, requirement: str, into: Path) -> Judged:
        """Every symbol of NCCL that a library of this package imports must be in ours, or in the package itself."""
        judged = Judged()
        self.packages.unpack(requirement, into, lambda name: name.endswith(".so") or "/lib/lib" in name)
        provided: set[str] = set(self.ours)
        wanted: set[str] = set()
        for file in sorted(into.rglob("*.so*")):
            provided |= symbols(file, "--defined-only")
            wanted |= symbols(file, "--undefined-only")
        for name in sorted(wanted):
            judged.check(f"finds {name}", None if name in provided else "missing")
        judged.check("imports functions of NCCL", None if wanted else "none is imported")
        return judged

    def judge_extensions(self) -> Judged:
        return self.judge_imports(EXTENSIONS, self.packages.folder("extensions", [EXTENSIONS]))

    def judge_torch(self) -> Judged:
        return self.judge_imports(TORCH, self.packages.folder("torch", [TORCH]))


def write_report(file: Path, results: dict[str, Judged]) -> None:
    lines = ["| judge | passed | failed |", "|---|---|---|"]
    lines += [f"| {name} | {len(judged.right)} | {len(judged.wrong)} |" for name, judged in results.items()]
    lines += [f"\nFailed, {name}: {reason}" for name, judged in results.items() for reason in judged.wrong]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="tested", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    parser.add_argument("judges", nargs="*", metavar="JUDGE", choices=[*NEEDED, []])
    arguments = parser.parse_args()
    cache = arguments.cache.resolve() / sys.implementation.cache_tag  # wheels are for one version of Python
    cache.mkdir(parents=True, exist_ok=True)
    judge = Judge(arguments.tested.resolve(), Packages(cache))
    results: dict[str, Judged] = {}
    skipped: list[str] = []
    for name in arguments.judges or NEEDED:
        try:
            for requirement in NEEDED[name]:
                judge.packages.wheel(requirement)
        except CannotDownload as error:
            print(f"skipped {name}: {error}", flush=True)
            skipped.append(name)
            continue
        try:
            judged = getattr(judge, f"judge_{name}")()
        except Exception:  # for example a full disk: a failed check, and the other judges go on
            judged = Judged()
            judged.check("runs to its end", traceback.format_exc())
        results[name] = judged
        for line in judged.right:
            print(f"ok {name}: {line}")
        for line in judged.wrong:
            print(f"not ok {name}: {line}")
        print(f"== {name}: {len(judged.right)} passed, {len(judged.wrong)} failed", flush=True)
    if arguments.report:
        write_report(arguments.report, results)
    wrong = sum(len(judged.wrong) for judged in results.values())
    right = sum(len(judged.right) for judged in results.values())
    print(f"{right} passed, {wrong} failed, {len(skipped)} skipped")
    return 1 if wrong else SKIPPED if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
