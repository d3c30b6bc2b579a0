"""Names the runs of a plot by the settings in which they differ. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from run_log import RunLog


def counted(count: int, noun: str) -> str:
    """For example "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def short_number(value: float) -> str:
    """With at most three significant digits, for example "250", "12k", "1.5M"."""
    value = float(f"{value:.3g}")  # rounded first, so that 999,999 is "1M"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def run_labels(logs: Sequence[RunLog]) -> tuple[str, list[str]]:
    """The settings that all runs share, and a label for each run: its values of the settings that differ between the
    runs. If these are the same for several runs, the label has the run's name as well, and its number if the names
    are the same, too."""
    settings = [_settings(log) for log in logs]
    shared = [values[0] for values in zip(*settings, strict=True) if len(set(values)) == 1]
    distinct = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
    labels = [
        ", ".join(value for value, differs in zip(values, distinct, strict=True) if differs and value)
        for values in settings
    ]
    count = Counter(labels)
    for i, label in enumerate(labels):
        if not label:
            labels[i] = logs[i].name
        elif count[label] > 1:
            labels[i] = f"{logs[i].name}: {label}"
    count = Counter(labels)
    labels = [f"{i}. {label}" if count[label] > 1 else label for i, label in enumerate(labels, 1)]
    return ", ".join(filter(None, shared)), labels


def _settings(log: RunLog) -> list[str]:
    """The settings of a run, in the same order for each run. An unknown setting is "", and so is a tensor or
    pipeline size of 1. An unknown seed is shown as 0."""
    return [
        log.model,
        log.strategy,
        counted(log.ranks, "rank"),
        f"tensor {log.tensor}" if log.tensor > 1 else "",
        f"pipeline {log.pipeline}" if log.pipeline > 1 else "",
        f"batch {log.batch}" if log.batch else "",
        log.precision,
        log.optimizer,
        "" if math.isnan(log.lr) else f"lr {log.lr:g}",
        counted(log.threads, "thread") if log.threads else "",
        f"seed {log.seed}",
        f"{short_number(log.parameters)} parameters" if log.parameters else "",
    ]
