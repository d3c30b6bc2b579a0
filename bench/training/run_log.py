"""Reads the log of one run of `tutti train MODEL --json FILE`: JSON lines, one record per line (docs/training.md)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 256 << 20
MOST_RANKS = 1_000_000
_MOST_WHOLE = (1 << 64) - 1  # upper bound of fields that may have any whole number
_MOST_STEPS = 10**15
_MOST_SECONDS = 1e9
_MOST_RATE = 1e15
_MOST_LOSS = 1e30  # a larger loss means that the training has diverged; it is drawn as a gap
_MOST_QUOTED = 24  # bytes of a line that a message quotes
_ADVICE = "name a log that `tutti train MODEL --json FILE` wrote"
NO_VALUE = math.nan  # stands for a number that the log does not have


class BadLog(Exception):
    """The message is for the user. If a log is at fault, the message names the file, and the line if only one is
    wrong."""


@dataclass
class Step:
    step: int  # counts from 1
    loss: float = NO_VALUE
    load_s: float = NO_VALUE  # loading the batch
    compute_s: float = NO_VALUE  # forward and backward passes, optimizer
    exposed_s: float = NO_VALUE  # communication that is not hidden by computation
    step_s: float = NO_VALUE  # the whole step


@dataclass
class Epoch:
    step: int  # number of steps that were completed at this test
    test_accuracy: float = NO_VALUE  # 0..1


@dataclass
class RunLog:
    """The part of a log that the plots use. If a record lacks a field, or the field is null, a measured value and `lr`
    are NO_VALUE, and any other setting is 0 or empty. A log without `ranks`, or with a "step" or "epoch" record without
    its `step`, is refused."""

    name: str  # name of the file without folder and extension
    model: str = ""
    strategy: str = ""
    optimizer: str = ""
    precision: str = ""
    parameters: int = 0
    ranks: int = 1
    tensor: int = 0  # ranks that share each layer
    pipeline: int = 0  # stages
    batch: int = 0  # samples per step
    threads: int = 0
    seed: int = 0
    lr: float = NO_VALUE
    steps: list[Step] = field(default_factory=list)  # in the order of the file
    epochs: list[Epoch] = field(default_factory=list)
    samples_per_s: float = NO_VALUE  # of the whole run; NO_VALUE if the run did not end


def read_log(path: Path) -> RunLog:
    """Raises BadLog, or OSError if the file cannot be read."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadLog(f"{path} is bigger than {MOST_BYTES >> 20} MB: leave out some of its step records")
    return parse_log(str(path), data)


def parse_log(name: str, data: bytes) -> RunLog:
    """Parses a log; `name` is the file for messages. Unknown fields and records are ignored. An incomplete last line is
    ignored as well, because the run may have been killed while it wrote the line. Raises BadLog."""
    if not data:
        raise BadLog(f"{name} is empty: {_ADVICE}")
    log = RunLog(Path(name).stem)
    has_run = False
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        record = _record(line)
        if record is None and number == len(lines) and line.startswith(b"{"):
            break  # the run was killed while it wrote this line
        if not isinstance(record, dict):
            what = f'"{_quoted(line)}" is not a JSON object'
            raise BadLog(f"{name}, line {number}: {what}: fix or remove the line, or {_ADVICE}")
        try:
            has_run = _take(record, log, has_run)
        except ValueError as error:
            raise BadLog(f"{name}, line {number}: {error}: fix or remove the line") from None
    if not has_run:
        raise BadLog(f'{name} has no "run" record: {_ADVICE}')
    return log


def _record(line: bytes) -> Any:
    """The value of a line; None if it is not JSON."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=lambda word: _refuse(f"{word} is not JSON"))
    except (ValueError, RecursionError):
        return None


def _refuse(message: str) -> Any:
    raise ValueError(message)


def _quoted(line: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in line[:_MOST_QUOTED])
    return text + ("..." if len(line) > _MOST_QUOTED else "")


def _take(record: dict[str, Any], log: RunLog, has_run: bool) -> bool:
    """Adds a record to the log. Returns whether the log has its "run" record now. Raises ValueError."""
    kind = record.get("record")
    if not isinstance(kind, str):
        raise ValueError('there is no "record" field with the type of the record')
    if kind == "run":
        if not has_run:  # a resumed run appends another one to the same file
            _take_run(record, log)
        return True
    if kind == "step":
        step = Step(_required(record, "step", 0, _MOST_STEPS), _number(record, "loss"))
        if not abs(step.loss) <= _MOST_LOSS:
            step.loss = NO_VALUE
        for name in ("load_s", "compute_s", "exposed_s", "step_s"):
            setattr(step, name, _amount(record, name, _MOST_SECONDS))
        log.steps.append(step)
    elif kind == "epoch":
        log.epochs.append(Epoch(_required(record, "step", 0, _MOST_STEPS), _amount(record, "test_accuracy", 1)))
    elif kind == "result":
        log.samples_per_s = _amount(record, "samples_per_s", _MOST_RATE)
    return has_run


def _take_run(record: dict[str, Any], log: RunLog) -> None:
    for name in ("model", "strategy", "optimizer", "precision"):
        setattr(log, name, _word(record, name))
    log.ranks = _required(record, "ranks", 1, MOST_RANKS)
    for name in ("tensor", "pipeline"):
        setattr(log, name, _whole(record, name, 1, MOST_RANKS))
    for name in ("parameters", "batch", "threads", "seed"):
        setattr(log, name, _whole(record, name, 0, _MOST_WHOLE))
    log.lr = _number(record, "lr")


def _whole(record: dict[str, Any], name: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`; 0 if the record lacks the field. Raises ValueError."""
    value = record.get(name)
    if value is None:
        return 0
    if type(value) is int and least <= value <= most:  # isinstance() would accept true and false
        return value
    limits = f"of at least {least}" if most == _MOST_WHOLE else f"of {least} to {most}"
    raise ValueError(f'"{name}" should be a whole number {limits}')


def _required(record: dict[str, Any], name: str, least: int, most: int) -> int:
    if record.get(name) is None:
        raise ValueError(f'"{name}" is missing')
    return _whole(record, name, least, most)


def _number(record: dict[str, Any], name: str) -> float:
    """Any number; NO_VALUE if the field is missing or null, or no float is large enough for it. Raises ValueError."""
    value = record.get(name)
    if value is None:
        return NO_VALUE
    if type(value) not in (int, float):
        raise ValueError(f'"{name}" should be a number or null')
    try:
        number = float(value)
    except OverflowError:
        return NO_VALUE
    return number if math.isfinite(number) else NO_VALUE


def _amount(record: dict[str, Any], name: str, most: float) -> float:
    """For seconds, rates and fractions: a number from 0 to `most`, or NO_VALUE. Raises ValueError."""
    value = _number(record, name)
    if value < 0 or value > most:
        raise ValueError(f'"{name}" should be a number of 0 to {most:g}')
    return value


def _word(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f'"{name}" should be a string')
    return value
