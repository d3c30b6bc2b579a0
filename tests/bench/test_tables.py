"""Tests of the tables of the comparison with other libraries, with made-up results."""

import unittest

from results import Results
from tables import Grid, all_reduce_table, collectives_table, markdown, notes, waiting_table


def made(times: dict[str, list[float]], section: str = "memory", size: int = 8, ranks: int = 2) -> Results:
    """Makes results for one size. `times` has the median times of each variant, by its name."""
    results = Results(
        {"runs": [{"command": "scripts/compare --quick"}]},
        {"cores": 2, "load": [0.1]},
        {"memory/ompi": "Open MPI"},
        {"Tutti": "x"},
    )
    for variant, values in times.items():
        for value in values:
            record = {
                "median_us": value,
                "loop_us": 100 * value,
                "mean_us": 1,
                "slowest_mean_us": 1,
                "slowest_median_us": 1,
            }
            results.cell(section, "all_reduce", ranks, size, variant).add(record)
    return results


def row(table: str, name: str) -> list[str]:
    """Returns the cells of the row that begins with `name`."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    found = [cells for cells in rows if cells[0] == name]
    assert len(found) == 1, f"{len(found)} rows {name} in\n{table}"
    return found[0]


class GridTest(unittest.TestCase):
    def test_the_best_peer_is_the_quickest_that_is_not_ours(self) -> None:
        grid = Grid(made({"tutti_plain": [1.0], "ompi": [4.0, 5.0, 9.0], "mpich": [6.0]}), "memory", "all_reduce", 2)
        self.assertEqual(grid.best_peer(8), ("ompi", 5.0))
        self.assertEqual(grid.best_peer(8, "mpich"), ("mpich", 6.0))
        self.assertIsNone(grid.best_peer(8, "gloo"))
        self.assertEqual(grid.speedup("tutti_plain", 8), 5.0)

    def test_more_ranks_than_cores_count_back_to_back(self) -> None:
        grid = Grid(made({"tutti_plain": [2.0]}, ranks=4), "memory", "all_reduce", 4)
        self.assertEqual(grid.time("tutti_plain", 8), 200.0)

    def test_a_wrong_element_takes_the_time_away(self) -> None:
        results = made({"tutti_plain": [1.0], "ompi": [4.0], "mpich": [6.0]})
        results.cell("memory", "all_reduce", 2, 8, "ompi").wrong = 3
        grid = Grid(results, "memory", "all_reduce", 2)
        self.assertEqual(grid.best_peer(8), ("mpich", 6.0))
        self.assertIn("3 wrong", grid.text("ompi", 8))
        self.assertEqual(notes(results), ["- memory, ompi, all_reduce, 2 ranks, 8 B: 3 wrong elements"])


class TableTest(unittest.TestCase):
    def test_all_reduce_has_times_ratios_a_reference_and_means(self) -> None:
        results = made({"tutti_registered": [1.0, 2.0, 3.0], "ompi": [8.0]})
        for value in (2.0, 4.0):  # adds a second size
            name = "tutti_registered" if value == 2.0 else "ompi"
            results.cell("memory", "all_reduce", 2, 1024, name).add(
                {"median_us": value, "loop_us": 1, "mean_us": 1, "slowest_mean_us": 1, "slowest_median_us": 1}
            )
        results.references = {(2, 8): [1.25, 1.0], (2, 1024): [0.5]}
        table = all_reduce_table(results, "memory", 2, with_reference=True)
        self.assertEqual(row(table, "tutti_registered")[1:3], ["2.00 [1.50..2.50]", "2.00"])
        self.assertEqual(row(table, "**best peer**")[1:3], ["8.00 ompi", "4.00 ompi"])
        self.assertEqual(row(table, "**best peer / tutti_registered**")[1:], ["4.00 x", "2.00 x", "2.83 x"])
        shortest = row(table, "**best peer / tutti_registered, shortest trials**")
        self.assertEqual(shortest[1:], ["8.00 x", "2.00 x", "4.00 x"])
        self.assertEqual(row(table, "**tutti_registered / reference**")[1:], ["2.00 x", "4.00 x", "2.83 x"])

    def test_on_busy_cores_calls_back_to_back_count_and_each_load_has_its_table(self) -> None:
        results = Results(machine={"cores": 2})
        record = {"median_us": 1, "mean_us": 1, "slowest_mean_us": 1, "slowest_median_us": 1}
        for load, times in (("1 busy loop", {"tutti_plain": 50, "ompi": 75}), ("20% quota", {"tutti_plain": 9})):
            for variant, value in times.items():
                results.cell("busy", "all_reduce", 2, 8, variant, load=load).add(record | {"loop_us": value})
        self.assertEqual(Results.from_json(results.to_json()), results)
        table = all_reduce_table(results, "busy", 2, load="1 busy loop")
        self.assertEqual(row(table, "tutti_plain")[1], "50.0")
        self.assertEqual(row(table, "**best peer / tutti_plain**")[1], "1.50 x")
        self.assertEqual(row(all_reduce_table(results, "busy", 2, load="20% quota"), "**best peer**")[1], "-")

    def test_a_cell_without_samples_says_why(self) -> None:
        results = made({"tutti_plain": [1.0], "ompi": [4.0]})
        results.cell("memory", "all_reduce", 2, 8, "mpich").note = "cut off after 60 s"
        table = all_reduce_table(results, "memory", 2)
        self.assertEqual(row(table, "mpich")[1], "cut off after 60 s")
        self.assertEqual(row(table, "**best peer**")[1], "4.00 ompi")

    def test_gloo_has_a_row_of_its_own_over_tcp(self) -> None:
        table = all_reduce_table(
            made({"tutti_tcp": [1.0], "ompi_tcp": [2.0], "gloo_ring": [7.0]}, "loopback"), "loopback", 2
        )
        self.assertEqual(row(table, "**best gloo / tutti_tcp**")[1], "7.00 x")

    def test_other_collectives_and_waiting(self) -> None:
        results = made({})
        times = {"median_us": 9, "loop_us": 9, "mean_us": 9, "slowest_mean_us": 9}
        for variant, value in {"tutti_plain": 2.0, "mpich": 3.0}.items():
            results.cell("collectives", "broadcast", 2, 1024, variant).add(times | {"slowest_median_us": value})
        table = collectives_table(results, 2)
        self.assertEqual(row(table, "broadcast"), ["broadcast", "1 KiB", "2.00", "3.00 mpich", "1.50 x"])
        results.cell("waiting", "all_reduce", 2, 8, "ompi", "late").add({"cpu_percent": 99.5, "most_cpu_percent": 100})
        self.assertEqual(row(waiting_table(results), "ompi")[1:], ["99.5", "-"])

    def test_markdown(self) -> None:
        self.assertEqual(markdown(["a", "b"], [["1", "2"]]), "| a | b |\n|---|---|\n| 1 | 2 |")


class ResultsTest(unittest.TestCase):
    def test_json_brings_everything_back(self) -> None:
        results = made({"tutti_plain": [1.0, 2.0], "ompi": [4.0]})
        results.references[(2, 8)] = [0.25]
        results.cell("memory", "all_reduce", 2, 8, "mpich").note = "failed: why"
        self.assertEqual(Results.from_json(results.to_json()), results)
        with self.assertRaises(ValueError):
            Results.from_json('{"schema": "another"}')

    def test_merging_adds_samples(self) -> None:
        results = made({"ompi": [4.0]})
        results.merge(made({"ompi": [6.0], "mpich": [1.0]}))
        self.assertEqual(results.cell("memory", "all_reduce", 2, 8, "ompi").times["median_us"], [4.0, 6.0])
        self.assertEqual(len(results.cells), 2)


if __name__ == "__main__":
    unittest.main()
