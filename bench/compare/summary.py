"""Statistics of samples, and the selection of the time that is reported. Pure functions, standard library only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cases import ROOTED


@dataclass(frozen=True)
class Summary:
    """Median, quartiles and least value of samples. If there are few samples, the quartiles are interpolated."""

    median: float
    low: float
    high: float
    least: float
    samples: int


def summarize(values: list[float]) -> Summary | None:
    """The summary of the values; None if there are no values."""
    if not values:
        return None
    if len(values) == 1:
        return Summary(values[0], values[0], values[0], values[0], 1)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(middle, low, high, min(values), len(values))


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean of the values; None if there are no values, or if one of them is not positive."""
    found = list(values)
    if not found or min(found) <= 0:
        return None
    return math.exp(sum(math.log(value) for value in found) / len(found))


def headline(collective: str, ranks: int, cores: int, loaded: bool = False) -> str:
    """The name of the time that is reported.

    If there is a core for each rank, it is the median call after a barrier, as the mean over the ranks, because
    preemption by other programs hardly changes it. If there are more ranks than cores, or if the ranks share the cores
    with other programs (`loaded`), it is the mean of consecutive calls, because this includes the switches between
    processes. If the collective has a root, which may return before the other ranks have entered the call, it is the
    median call after a barrier on the slowest rank.
    """
    if collective in ROOTED:
        return "slowest_median_us"
    return "median_us" if ranks <= cores and not loaded else "loop_us"


def significant(value: float, digits: int = 3) -> str:
    """1234.5 -> "1230", 0.01234 -> "0.0123": without exponent."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):.{max(0, decimals)}f}"
