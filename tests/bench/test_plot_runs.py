"""Tests of the plot of training runs: what its panels show, its labels, and the program's messages."""

import contextlib
import io
import math
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

from plot_runs import MANY_STEPS, MOST_LOGS, MOST_POINTS, figure_of, loss_line, main, mean_step_ms
from plotting import svg_text
from run_labels import run_labels, short_number
from run_log import BadLog, Epoch, RunLog, Step

NAN = math.nan
RUN = '{"record":"run","model":"cnn","ranks":2}\n'
STEP = '{"record":"step","step":1,"loss":2.3,"step_s":0.01}\n'


def run_of(ranks: int, steps: int, strategy: str = "ddp", rate: float = NAN) -> RunLog:
    """A run whose loss starts at 2 and falls. The parts of a step take 1, 6, 2 and 1 ms. The first step takes 1 s."""
    log = RunLog(f"{strategy}{ranks}", "cnn", strategy, precision="fp32", ranks=ranks, samples_per_s=rate)
    log.steps = [Step(i, 1 + 1 / i, 0.001, 0.9 if i == 1 else 0.006, 0.002, 1.0 if i == 1 else 0.010)
                 for i in range(1, steps + 1)]
    return log


def panels(*logs: RunLog) -> dict[str, Any]:
    """The axes of each panel, by name."""
    figure = figure_of(logs)
    return {axes.get_gid(): axes for axes in figure.axes}


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.get_lines()}


def texts(*logs: RunLog) -> list[str]:
    """All texts of the SVG."""
    root = xml.etree.ElementTree.fromstring(svg_text(figure_of(logs)).encode())
    return [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]


class LossTest(unittest.TestCase):
    def test_each_log_has_a_line_with_its_own_colour(self) -> None:
        drawn = lines(panels(run_of(1, 10), run_of(2, 12), run_of(4, 9))["loss"])
        self.assertEqual(list(drawn), ["1 rank", "2 ranks", "4 ranks"])
        self.assertEqual([len(line.get_xdata()) for line in drawn.values()], [10, 12, 9])
        self.assertEqual(list(drawn["1 rank"].get_ydata()), [1 + 1 / i for i in range(1, 11)])
        self.assertEqual(len({line.get_color() for line in drawn.values()}), 3)
        self.assertIn("3 training runs: cnn, ddp, fp32, seed 0", texts(run_of(1, 10), run_of(2, 12), run_of(4, 9)))

    def test_many_steps_are_smoothed_and_have_a_band(self) -> None:
        log = run_of(1, 100_000)
        for i, step in enumerate(log.steps):
            step.loss += 0.5 if i % 2 == 0 else -0.5
        line = loss_line(log)
        self.assertTrue(line.smooth)
        self.assertEqual(len(line.shown), MOST_POINTS)
        half = MOST_POINTS // 2
        self.assertLess(max(line.shown[half:]) - min(line.shown[half:]), 0.01)
        self.assertGreater(min(line.high[half:]) - max(line.low[half:]), 0.9)
        self.assertEqual(len(panels(log)["loss"].collections), 1)
        self.assertLess(len(svg_text(figure_of([log]))), 60_000)
        self.assertFalse(loss_line(run_of(1, MANY_STEPS)).smooth)
        self.assertEqual(len(panels(run_of(1, MANY_STEPS))["loss"].collections), 0)

    def test_a_loss_that_is_no_number_is_a_gap(self) -> None:
        log = run_of(1, 10)
        log.steps[4].loss = NAN
        (label, line), = lines(panels(log)["loss"]).items()
        self.assertEqual(label, "ddp1 (1 step without a loss)")
        self.assertTrue(math.isnan(line.get_ydata()[4]))
        self.assertEqual(line.get_marker(), "None")
        log.steps[2].loss = NAN  # the fourth step has no neighbours now, and is drawn as a dot
        (line,) = panels(log)["loss"].get_lines()
        self.assertEqual((line.get_marker(), line.get_markevery()), (".", [3]))
        longer = run_of(1, 300)
        longer.steps[150].loss = NAN
        self.assertEqual([math.isnan(loss) for loss in loss_line(longer).shown].count(True), 1)
        for step in log.steps:
            step.loss = NAN
        self.assertEqual(list(panels(log)), ["time"])

    def test_losses_that_differ_much_have_a_logarithmic_axis(self) -> None:
        log = run_of(1, 5)
        for i, step in enumerate(log.steps):
            step.loss = 10.0**-i
        axes = panels(log)["loss"]
        self.assertEqual((axes.get_yscale(), axes.get_ylabel()), ("log", "loss (logarithmic)"))
        log.steps[3].loss = -1
        self.assertEqual(panels(log)["loss"].get_yscale(), "linear")

    def test_accuracies_are_dots_on_their_own_axis(self) -> None:
        log = run_of(1, 10)
        self.assertNotIn("accuracy", panels(log))
        log.epochs = [Epoch(5, 0.5), Epoch(10, 0.9), Epoch(10)]
        found = panels(log)
        dots = [(float(dot.get_xdata()[0]), float(dot.get_ydata()[0])) for dot in found["accuracy"].get_lines()]
        self.assertEqual(dots, [(5, 50), (10, 90)])  # one epoch has no accuracy
        color = found["loss"].get_lines()[0].get_color()
        self.assertEqual({dot.get_color() for dot in found["accuracy"].get_lines()}, {color})
        log.steps = []
        self.assertEqual(panels(log)["loss"].get_title(loc="left"), "Test accuracy")


class ThroughputTest(unittest.TestCase):
    def test_there_is_a_panel_only_if_ranks_differ(self) -> None:
        one, two = run_of(1, 3, rate=100), run_of(2, 3)
        self.assertNotIn("throughput", panels(one, two))  # only one run was completed
        self.assertNotIn("throughput", panels(one, one))
        logs = [run_of(4, 3, rate=240), run_of(2, 3, rate=180), one, run_of(4, 3, "zero", 320), run_of(4, 3, rate=280)]
        axes = panels(*logs)["throughput"]
        points = {label: list(zip(*line.get_data(), strict=True)) for label, line in lines(axes).items()}
        self.assertEqual(points["ddp"], [(1, 100), (2, 180), (4, 260)])  # the mean of 240 and 280
        self.assertEqual(points["zero"], [(4, 320)])
        self.assertEqual(points["ideal, from 1 rank"], [(1, 100), (4, 400)])
        self.assertEqual((axes.get_xlim()[0], axes.get_ylim()[0]), (0, 0))

    def test_the_ideal_is_that_of_the_fastest_run_with_the_fewest_ranks(self) -> None:
        logs = [run_of(2, 2, rate=100), run_of(2, 2, "zero", 150), run_of(4, 2, rate=170), run_of(2, 2, "tp", 120)]
        ideal = lines(panels(*logs)["throughput"])["ideal, from 2 ranks"]
        self.assertEqual(list(ideal.get_ydata()), [150, 300])


class TimeTest(unittest.TestCase):
    def test_a_bar_is_the_mean_of_all_steps_except_the_first(self) -> None:
        slow = run_of(2, 5)
        for step in slow.steps:
            step.step_s += 0.010
        axes = panels(run_of(1, 5), slow, run_of(4, 1))["time"]
        widths = [[round(bar.get_width(), 6) for bar in part] for part in axes.containers]
        self.assertEqual(widths, [[1, 1], [6, 6], [2, 2], [1, 11]])  # the run of one step has no bar
        self.assertEqual([text.get_text() for text in axes.texts], ["10 ms", "20 ms"])
        self.assertEqual([label.get_text() for label in axes.get_yticklabels()], ["1 rank", "2 ranks"])
        self.assertIsNone(mean_step_ms(run_of(4, 1)))

    def test_a_part_that_the_log_lacks_counts_as_rest(self) -> None:
        log = run_of(1, 3)
        for step in log.steps:
            step.exposed_s = NAN
        self.assertEqual([round(part, 6) for part in mean_step_ms(log) or []], [1, 6, 0, 3])


class LabelTest(unittest.TestCase):
    def test_equal_runs_have_their_names_and_no_two_labels_are_equal(self) -> None:
        one, two, three = (run_of(1, 3) for _ in range(3))
        one.name = two.name = "a"
        three.name = "b"
        self.assertEqual(run_labels([one, two, three])[1], ["1. a", "2. a", "b"])
        two.ranks = three.ranks = 2
        self.assertEqual(run_labels([one, two, three])[1], ["1 rank", "a: 2 ranks", "b: 2 ranks"])

    def test_numbers_are_short(self) -> None:
        numbers = (0, 250, 12_000, 1_199_882, 1.5e9)
        self.assertEqual([short_number(value) for value in numbers], ["0", "250", "12k", "1.2M", "1.5G"])
        self.assertEqual([short_number(value) for value in (999.4, 999.6, 999_999)], ["999", "1k", "1M"])

    def test_texts_from_logs_cannot_break_the_plot(self) -> None:
        one, two, three = run_of(1, 3, '<b>&"quick"', 5), run_of(3, 3, "$x^{$", 6), run_of(2, 3, "_a\x01\ud800\n", 7)
        shown = " | ".join(texts(one, two, three))
        for part in ('<b>&"quick"', "$x^{$", "_a???"):
            self.assertIn(part, shown)
        one.strategy = "a strategy whose name is far too long for a legend or an axis"
        self.assertIn("a strategy whose name is far too long ..d or an axis, 1 rank", texts(one, two))


class FigureTest(unittest.TestCase):
    def test_the_same_logs_have_the_same_text(self) -> None:
        logs = [run_of(1, 300, rate=10), run_of(2, 10, rate=19)]
        self.assertEqual(svg_text(figure_of(logs)), svg_text(figure_of(logs)))
        self.assertNotIn("<metadata>", svg_text(figure_of(logs)))

    def test_extreme_logs_can_be_drawn(self) -> None:
        logs = []
        for i in range(MOST_LOGS):
            name = f"a strategy whose name is far too long for a legend, number {i}"
            log = run_of(1 + i * i, 1 + 7 * i, name, 1e3 * i)
            log.epochs = [Epoch(i, 1), Epoch(3 * i, 0)]
            for step in log.steps:
                step.step += i << 20
            log.steps[-1].loss = {0: 1e30, 1: -1e30, 2: 1e-300}.get(i, 0)
            logs.append(log)
        level, late = run_of(1, 300), run_of(1, 2)
        for step in level.steps:
            step.loss = 0.25
        for step in late.steps:
            step.step = 10**15
        for some in (logs, [run_of(1, 1)], [level], [late], [logs[0], logs[2]]):
            figure = figure_of(some)
            self.assertNotRegex(svg_text(figure), r"\b(nan|inf)\b")
            width, height = figure.bbox.width, figure.bbox.height
            for axes in figure.axes:
                box = axes.get_tightbbox()
                self.assertTrue(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, box)
                self.assertGreater(axes.bbox.width, 0.4 * width)
        with self.assertRaisesRegex(BadLog, "no log has a loss.* let a run do two steps first"):
            figure_of([RunLog("empty")])


class ProgramTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.good = self.write("good.jsonl", RUN + STEP + STEP)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def run_main(self, *arguments: str) -> tuple[int, str]:
        """Exit status and messages."""
        with contextlib.redirect_stderr(io.StringIO()) as messages:
            try:
                status = main(list(arguments))
            except SystemExit as error:
                status = int(error.code or 0)
        return status, messages.getvalue()

    def test_several_logs_become_a_plot_in_each_format(self) -> None:
        other = self.write("other.jsonl", RUN + STEP + STEP)
        for ending, begin in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
            output = self.folder / f"out{ending}"
            self.assertEqual(self.run_main(self.good, other, "-o", str(output)), (0, ""))
            self.assertTrue(output.read_bytes().startswith(begin))
        text = (self.folder / "out.svg").read_text()
        self.assertIn(">good<", text)
        self.assertIn(">other<", text)

    def test_a_bad_log_is_named_and_nothing_is_written(self) -> None:
        for name, text, message in (
            ("empty.jsonl", "", "empty.jsonl is empty"),
            ("bad.jsonl", RUN + "loss\n", "bad.jsonl, line 2: "),
            ("bare.jsonl", RUN, "let a run do two steps first"),
        ):
            logs = [self.good] if text != RUN else []
            status, messages = self.run_main(*logs, self.write(name, text), "-o", str(self.folder / "no.svg"))
            self.assertEqual(status, 1)
            self.assertRegex(messages, f"^plot-training: .*{message}")
        status, messages = self.run_main(self.good, str(self.folder / "none.jsonl"), "-o", str(self.folder / "no.svg"))
        self.assertEqual(status, 1)
        self.assertRegex(messages, r"^plot-training: cannot read .*none\.jsonl: No such file or directory\n$")
        self.assertFalse((self.folder / "no.svg").exists())

    def test_an_output_that_cannot_be_written_is_named(self) -> None:
        (self.folder / "folder.svg").mkdir()
        (self.folder / "full.svg").symlink_to("/dev/full")
        for name, reason in (
            ("none/x.svg", "No such file or directory"),
            ("folder.svg", "Is a directory"),
            ("full.svg", "No space left on device"),
        ):
            status, messages = self.run_main(self.good, "-o", str(self.folder / name))
            self.assertEqual(status, 1)
            self.assertRegex(messages, f"^plot-training: cannot write .*{name}: {reason}\n$")

    def test_the_plot_does_not_replace_a_log(self) -> None:
        log = self.write("log.svg", RUN + STEP + STEP)
        status, messages = self.run_main(log, "-o", str(self.folder / "." / "log.svg"))
        self.assertEqual(status, 1)
        self.assertIn("the plot would replace the log", messages)
        self.assertEqual(Path(log).read_text(), RUN + STEP + STEP)

    def test_a_wrong_command_line_is_refused(self) -> None:
        for arguments, message in (
            (["-o", "x.svg"], "required: logs"),
            ([self.good], "required: -o"),
            ([self.good, "-o", "x.txt"], "x.txt: name a file that ends in .svg, .png, .pdf"),
            ([self.good] * (MOST_LOGS + 1) + ["-o", "x.svg"], "there are 65 logs to draw: name 1 to 64"),
        ):
            status, messages = self.run_main(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(message, messages)


if __name__ == "__main__":
    unittest.main()
