"""Tests of the statistics of the comparison with other libraries, and of its names for sizes."""

import unittest

from cases import Case, Settings, all_cases, memory_needed, parse_size, size_text
from summary import geometric_mean, headline, significant, summarize


class SummaryTest(unittest.TestCase):
    def test_median_and_quartiles_are_interpolated(self) -> None:
        summary = summarize([4.0, 1.0, 3.0, 2.0])
        assert summary is not None
        self.assertEqual((summary.low, summary.median, summary.high, summary.samples), (1.75, 2.5, 3.25, 4))

    def test_one_sample_is_its_own_quartiles_and_none_is_none(self) -> None:
        summary = summarize([7.0])
        assert summary is not None
        self.assertEqual((summary.low, summary.median, summary.high), (7.0, 7.0, 7.0))
        self.assertIsNone(summarize([]))

    def test_one_wild_sample_does_not_move_the_median(self) -> None:
        summary = summarize([1.0, 1.0, 1.0, 1.0, 1e9])
        assert summary is not None
        self.assertEqual((summary.median, summary.high), (1.0, 1.0))

    def test_geometric_mean(self) -> None:
        self.assertAlmostEqual(geometric_mean([2.0, 8.0]) or 0, 4.0)
        self.assertAlmostEqual(geometric_mean([0.5, 2.0]) or 0, 1.0)
        self.assertIsNone(geometric_mean([]))
        self.assertIsNone(geometric_mean([1.0, 0.0]))

    def test_headline_follows_ranks_and_root(self) -> None:
        self.assertEqual(headline("all_reduce", 2, 2), "median_us")
        self.assertEqual(headline("all_reduce", 3, 2), "loop_us")
        self.assertEqual(headline("broadcast", 2, 2), "slowest_median_us")
        self.assertEqual(headline("gather", 8, 2), "slowest_median_us")

    def test_significant_digits_without_exponent(self) -> None:
        numbers = {1234.5: "1230", 0.012345: "0.0123", 99.96: "100", 5.0: "5.00", 0.0: "0", 1.5e7: "15000000"}
        for value, text in numbers.items():
            self.assertEqual(significant(value), text.replace("100", "100.0") if value == 99.96 else text)


class CasesTest(unittest.TestCase):
    def test_sizes_are_read_as_they_are_written(self) -> None:
        for text, size in {"8": 8, "1K": 1024, "64k": 65536, "128M": 128 << 20, "1G": 1 << 30}.items():
            self.assertEqual(parse_size(text), size)
        for text in ("", "K", "x", "3", "-8", "2G", "1.5K"):
            with self.assertRaises(ValueError, msg=text):
                parse_size(text)
        self.assertEqual(
            [size_text(n) for n in (8, 1024, 65536, 1 << 20, 1500)], ["8 B", "1 KiB", "64 KiB", "1 MiB", "1500 B"]
        )

    def test_sections_make_their_cases_and_no_others(self) -> None:
        memory = all_cases(Settings(sections=("memory",), ranks=(2, 4)), cores=2)
        self.assertEqual([(c.section, c.ranks, len(c.sizes)) for c in memory], [("memory", 2, 7), ("memory", 4, 7)])
        sessions = all_cases(Settings(sections=("sessions",), ranks=(2,), many_ranks=(16, 32)), cores=2)
        self.assertEqual([c.ranks for c in sessions], [2, 16, 32])
        self.assertTrue(all(c.own_sessions and c.sizes == (8,) for c in sessions))
        tuned = all_cases(Settings(sections=("tuned",), ranks=(2,)), cores=2)
        self.assertEqual(min(tuned[0].sizes), 1 << 20)
        waiting = all_cases(Settings(sections=("waiting",)), cores=2)
        self.assertEqual([(c.measure, c.ranks) for c in waiting], [("late", 2), ("late", 4), ("idle", 2), ("idle", 4)])
        others = all_cases(Settings(sections=("collectives",), ranks=(2,)), cores=2)
        self.assertEqual(len(others), 8)
        self.assertEqual([c.sizes for c in others if c.collective == "barrier"], [(0,)])

    def test_memory_counts_every_ranks_buffers(self) -> None:
        case = Case("memory", "memory", "all_reduce", 8, (1 << 20,))
        self.assertGreaterEqual(memory_needed(case, 1 << 20), 16 << 20)


if __name__ == "__main__":
    unittest.main()
