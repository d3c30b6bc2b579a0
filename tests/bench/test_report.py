"""Tests of the report and of the plots of the comparison with other libraries, with made-up results."""

import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

from plot import Line, Plot, figure_of, svg
from report import README_BEGIN, README_END, performance_text, plot_name, update_readme
from test_tables import made


class ReportTest(unittest.TestCase):
    def test_the_report_names_command_raw_results_and_sections(self) -> None:
        results = made({"tutti_plain": [1.0], "ompi": [4.0]})
        text = performance_text(results, Path("results/x.json"), [plot_name(2)])
        for part in (
            "    scripts/compare --quick\n",
            "(results/x.json)",
            "### 2 ranks",
            "](performance-2.svg)",
            "| ompi |",
        ):
            self.assertIn(part, text)
        self.assertNotIn("## Other collectives", text)

    def test_the_readme_gets_the_table_between_its_comments(self) -> None:
        times = {"tutti_registered": [1.0], "tutti_plain": [2.0], "ompi_nocma": [4.0, 10.0, 12.0], "impi": [50.0]}
        results = made(times)
        results.cell("memory", "all_reduce", 2, 8, "mpich5").note = "failed"
        results.machine |= {"cpu": "Some CPU", "date": "2026-01-02"}
        with tempfile.TemporaryDirectory() as folder:
            readme = Path(folder) / "README.md"
            readme.write_text(f"before\n{README_BEGIN}\nold\n{README_END}\nafter\n", encoding="utf-8")
            update_readme(results, readme)
            update_readme(results, readme)
            text = readme.read_text(encoding="utf-8")
            self.assertTrue(text.startswith(f"before\n{README_BEGIN}\nHow many times as fast as the best of Open MPI and "))
            self.assertIn("Intel MPI in the same run: float32 all-reduce in place on 2 cores of one Some CPU, 2026", text)
            self.assertIn("| 2 | registered | 10 | 10 |\n| 2 | plain | 5.0 | 5.0 |\n", text)
            self.assertTrue(text.endswith(f"|\n{README_END}\nafter\n"))
            self.assertNotIn("old", text)
            readme.write_text("without comments", encoding="utf-8")
            with self.assertRaises(ValueError):
                update_readme(results, readme)


class PlotTest(unittest.TestCase):
    def test_the_plot_has_a_line_for_each_series(self) -> None:
        reference = Line("reference", ((8.0, 0.5), (1024.0, 9.0)), dashed=True)
        lines = (Line("a & b", ((1024.0, 20.0), (8.0, 1.0))), reference)
        (axes,) = figure_of(Plot("t", "x", "y", lines, ((8.0, "8 B"), (1024.0, "1 KiB")))).axes
        found = {line.get_label(): line for line in axes.get_lines()}
        self.assertEqual([list(values) for values in found["a & b"].get_data()], [[8, 1024], [1, 20]])
        self.assertEqual(found["reference"].get_linestyle(), "--")
        self.assertEqual((axes.get_xscale(), axes.get_yscale()), ("log", "log"))
        self.assertEqual([tick.get_text() for tick in axes.get_xticklabels()], ["8 B", "1 KiB"])

    def test_the_svg_has_the_texts_and_is_the_same_each_time(self) -> None:
        plot = Plot("t", "x", "y", (Line("a & b", ((8.0, 1.0), (1024.0, 20.0))),), ((8.0, "8 B"),))
        root = xml.etree.ElementTree.fromstring(svg(plot).encode())
        texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertLessEqual({"t", "x", "y", "a & b", "8 B", "1", "10"}, set(texts))
        self.assertEqual(svg(plot), svg(plot))

    def test_nothing_to_draw_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            svg(Plot("t", "x", "y", (), ()))
        with self.assertRaises(ValueError):
            svg(Plot("t", "x", "y", (Line("a", ((0.0, 1.0),)),), ()))

    def test_a_missing_matplotlib_is_named_with_the_command_that_installs_it(self) -> None:
        bench = str(Path(sys.modules["plotting"].__file__ or "").parent)
        script = "import sys; sys.modules['matplotlib'] = None; sys.path.insert(0, sys.argv[1]); import plotting"
        done = subprocess.run([sys.executable, "-c", script, bench], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("`scripts/setup --plots` installs it into build/python", done.stderr)


if __name__ == "__main__":
    unittest.main()
