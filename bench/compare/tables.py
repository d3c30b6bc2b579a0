"""Markdown tables of a run's results. Pure functions: Results -> text."""

from __future__ import annotations

from collections.abc import Sequence

from cases import size_text
from results import Cell, Results
from summary import geometric_mean, significant


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def cell_text(cell: Cell | None, cores: int) -> str:
    """Median and quartiles, or the reason why they are missing."""
    if cell is None:
        return "-"
    if cell.wrong:
        return f"**{cell.wrong} wrong**"
    summary = cell.summary(cores)
    if summary is None:
        return cell.note.split(":")[0] or "-"
    text = significant(summary.median)
    if summary.samples > 1:
        text += f" [{significant(summary.low)}..{significant(summary.high)}]"
    return text + (f" ({cell.note.split(':')[0]})" if cell.note else "")


class Grid:
    """The cells of one section, collective, number of ranks and load: variants by sizes."""

    def __init__(self, results: Results, section: str, collective: str, ranks: int, load: str = "") -> None:
        self._results = results
        self._cells = {
            (cell.variant, cell.bytes): cell
            for cell in results.of(section)
            if (cell.collective, cell.ranks, cell.measure, cell.load) == (collective, ranks, "time", load)
        }
        self.ranks = ranks
        self.sizes = sorted({size for _, size in self._cells})
        self.variants = list(dict.fromkeys(variant for variant, _ in self._cells))

    def text(self, variant: str, size: int) -> str:
        return cell_text(self._cells.get((variant, size)), self._results.cores)

    def time(self, variant: str, size: int, least: bool = False) -> float | None:
        """The median of the trials, or with `least` the shortest one, which other programs have disturbed least."""
        cell = self._cells.get((variant, size))
        summary = cell.summary(self._results.cores) if cell is not None else None
        if summary is None:
            return None
        return summary.least if least else summary.median

    @property
    def ours(self) -> list[str]:
        return [variant for variant in self.variants if variant.startswith("tutti")]

    def best_peer(self, size: int, prefix: str = "", least: bool = False) -> tuple[str, float] | None:
        """The fastest variant that is not one of `ours`: of another library, or of another build of Tutti. Only
        variants with names that begin with `prefix` are considered. `least`: as in time()."""
        found = [
            (time, variant)
            for variant in self.variants
            if variant not in self.ours and variant.startswith(prefix)
            if (time := self.time(variant, size, least)) is not None
        ]
        return (min(found)[1], min(found)[0]) if found else None

    def speedup(self, ours: str, size: int, prefix: str = "", least: bool = False) -> float | None:
        """The time of the best peer divided by that of the variant `ours`: greater than 1 if `ours` is faster. `least`: as
        in time()."""
        best, time = self.best_peer(size, prefix, least), self.time(ours, size, least)
        return best[1] / time if best is not None and time else None


def all_reduce_table(
    results: Results, section: str, ranks: int, with_reference: bool = False, load: str = ""
) -> str:
    """Times of all variants, then the ratios, each with its geometric mean over the sizes."""
    grid = Grid(results, section, "all_reduce", ranks, load)
    head = ["us", *map(size_text, grid.sizes), "geometric mean"]
    rows = [[variant, *(grid.text(variant, size) for size in grid.sizes), ""] for variant in grid.variants]
    best = [grid.best_peer(size) for size in grid.sizes]
    rows.append(["**best peer**", *(f"{significant(b[1])} {b[0]}" if b else "-" for b in best), ""])
    rows += [_ratio_row(f"best peer / {v}", [grid.speedup(v, size) for size in grid.sizes]) for v in grid.ours]
    for ours in grid.ours:
        ratios = [grid.speedup(ours, size, least=True) for size in grid.sizes]
        rows.append(_ratio_row(f"best peer / {ours}, shortest trials", ratios))
    if with_reference:
        references = [results.reference(ranks, size) for size in grid.sizes]
        rows.append(["reference", *(significant(reference) if reference else "-" for reference in references), ""])
        for ours in grid.ours:
            ratios = [_over_reference(results, grid, ours, size) for size in grid.sizes]
            rows.append(_ratio_row(f"{ours} / reference", ratios))
    elif any(variant.startswith("gloo") for variant in grid.variants):
        for ours in grid.ours:
            rows.append(_ratio_row(f"best gloo / {ours}", [grid.speedup(ours, size, "gloo") for size in grid.sizes]))
    return markdown(head, rows)


def _over_reference(results: Results, grid: Grid, ours: str, size: int) -> float | None:
    reference, time = results.reference(grid.ranks, size), grid.time(ours, size)
    return time / reference if reference and time else None


def _ratio_row(name: str, values: Sequence[float | None]) -> list[str]:
    """A row with the ratios, followed by their geometric mean."""
    mean = geometric_mean(value for value in values if value is not None)
    return [f"**{name}**", *(_ratio_text(value) for value in values), _ratio_text(mean)]


def _ratio_text(value: float | None) -> str:
    return f"{significant(value)} x" if value is not None else "-"


def readme_table(results: Results) -> str:
    """How many times as fast as the best peer: a row for each number of ranks and variant of ours, in memory."""
    grids = [
        Grid(results, "memory", "all_reduce", ranks) for ranks in sorted({cell.ranks for cell in results.of("memory")})
    ]
    sizes = sorted({size for grid in grids for size in grid.sizes})
    rows = []
    for grid in grids:
        for ours in grid.ours:
            ratios = [grid.speedup(ours, size) for size in sizes]
            mean = geometric_mean(ratio for ratio in ratios if ratio is not None)
            texts = [significant(ratio, 2) if ratio is not None else "-" for ratio in (*ratios, mean)]
            rows.append([str(grid.ranks), ours.removeprefix("tutti_"), *texts])
    return markdown(["ranks", "memory", *map(size_text, sizes), "geometric mean"], rows)


def by_ranks_table(results: Results, section: str) -> str:
    """All-reduce at one size: a row for each variant, a column for each number of ranks."""
    ranks = sorted({cell.ranks for cell in results.of(section)})
    size = next((cell.bytes for cell in results.of(section)), 0)
    grids = {number: Grid(results, section, "all_reduce", number) for number in ranks}
    variants = list(dict.fromkeys(cell.variant for cell in results.of(section)))
    rows = [[variant, *(grids[number].text(variant, size) for number in ranks), ""] for variant in variants]
    for ours in (variant for variant in variants if variant.startswith("tutti")):
        rows.append(_ratio_row(f"best peer / {ours}", [grids[number].speedup(ours, size) for number in ranks]))
    references = [results.reference(number, size) for number in ranks]
    if any(references):
        rows.append(["reference", *(significant(reference) if reference else "-" for reference in references), ""])
    return markdown(["us", *(f"{number} ranks" for number in ranks), "geometric mean"], rows)


def collectives_table(results: Results, ranks: int) -> str:
    """The other collectives: a row for each collective and size."""
    cells = [cell for cell in results.of("collectives") if cell.ranks == ranks]
    collectives = list(dict.fromkeys(cell.collective for cell in cells))
    ours = list(dict.fromkeys(cell.variant for cell in cells if cell.variant.startswith("tutti")))
    rows = []
    speedups: dict[str, list[float]] = {variant: [] for variant in ours}
    for collective in collectives:
        grid = Grid(results, "collectives", collective, ranks)
        for size in grid.sizes:
            best = grid.best_peer(size)
            row = [collective, size_text(size) if size else "", *(grid.text(variant, size) for variant in ours)]
            row += [f"{grid.text(best[0], size)} {best[0]}" if best else "-"]
            for variant in ours:
                speedup = grid.speedup(variant, size)
                row.append(_ratio_text(speedup))
                speedups[variant] += [speedup] if speedup is not None else []
            rows.append(row)
    means = [_ratio_text(geometric_mean(speedups[variant])) for variant in ours]
    rows.append(["geometric mean", "", *("" for _ in ours), "", *means])
    head = ["collective", "size", *(f"{v}, us" for v in ours), "best peer, us", *(f"best peer / {v}" for v in ours)]
    return markdown(head, rows)


def waiting_table(results: Results) -> str:
    cells = results.of("waiting")
    columns = [(measure, ranks) for measure in ("late", "idle") for ranks in sorted({cell.ranks for cell in cells})]
    by_key = {(cell.variant, cell.measure, cell.ranks): cell for cell in cells}
    words = {"late": "waiting", "idle": "idle"}
    rows = []
    for variant in dict.fromkeys(cell.variant for cell in cells):
        found = [by_key.get((variant, measure, ranks)) for measure, ranks in columns]
        rows.append([variant, *(cell_text(cell, results.cores) for cell in found)])
    return markdown(["% of a core", *(f"{words[measure]}, {ranks} ranks" for measure, ranks in columns)], rows)


def notes(results: Results) -> list[str]:
    """One line for each cell that has a note or wrong elements."""
    lines = []
    for cell in results.cells.values():
        load = f", {cell.load}" if cell.load else ""
        place = f"{cell.section}{load}, {cell.variant}, {cell.collective}, {cell.ranks} ranks, {size_text(cell.bytes)}"
        if cell.wrong:
            lines.append(f"- {place}: {cell.wrong} wrong elements")
        elif cell.note:
            lines.append(f"- {place}: {cell.note}")
    return lines
