"""Tests of the plot of the predicted scaling curve, with made-up results."""

import unittest
from pathlib import Path

from curve import ERRORS, GRADIENT_BYTES, MACHINES, buckets, curve_figure, curve_points, curve_row, curve_svg
from runs import Job, Results, Settings

SETTINGS = Settings(tutti="tutti", output_dir=Path("."), step_source="assumed <here>")


def made() -> Results:
    """Results in which a call takes 1 ms for 8 GPUs, and 1 ms more for each doubling of the machines."""
    results = Results("curve")
    for i, machines in enumerate(MACHINES):
        for size in {GRADIENT_BYTES, *buckets()}:
            job = Job(curve_row(8 * machines, size), 1, ("tutti", str(machines), str(size)))
            results.add(job, {"values": {"time_us": 1000.0 * (i + 1)}})
    return results


class CurveTest(unittest.TestCase):
    def test_the_lines_and_bands_are_those_of_the_points(self) -> None:
        results = made()
        points = curve_points(results, SETTINGS)
        (axes,) = curve_figure(results, SETTINGS).axes
        lines = {line.get_label(): line for line in axes.get_lines()}
        self.assertEqual(list(lines["with overlap"].get_xdata()), [1, 8, 16, 32, 64, 128, 256, 512, 1024])
        self.assertEqual(list(lines["with overlap"].get_ydata()), [point.efficiency for point in points])
        self.assertEqual(list(lines["without overlap"].get_ydata()), [point.without_overlap for point in points])
        self.assertEqual(len(axes.collections), len(ERRORS))
        for i, band in enumerate(axes.collections):
            edge = {round(float(y), 6) for _, y in band.get_paths()[0].vertices}
            self.assertEqual(edge, {round(value, 6) for point in points for value in point.bands[i]})

    def test_the_plot_says_that_it_is_a_prediction(self) -> None:
        text = curve_svg(made(), SETTINGS)
        self.assertIn(">Prediction, not measured: ", text)
        self.assertIn("a step of 100 ms (assumed &lt;here&gt;)", text)
        self.assertEqual(text, curve_svg(made(), SETTINGS))


if __name__ == "__main__":
    unittest.main()
