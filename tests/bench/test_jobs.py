"""Tests of benchmark jobs whose drivers misbehave: all processes are ended, and the table cells show the reason."""

import os
import stat
import tempfile
import time
import unittest
from pathlib import Path

from cases import Case, Load, Settings
from jobs import Outcome, become_reaper, clean_environment, descendants, run_job
from load import JobLoad, why_no_quota
from peers import JobEnvironment, Variant, driver_arguments, launch, machine_of, variants, variants_beside, variants_of
from results import Results
from rounds import Run

SETTINGS = Settings(trials=1)
HASTY_S = 3.0  # the start of a job and a size that does not hang must take less
HASTY = Settings(trials=1, cell_limit_s=HASTY_S)
CASE = Case("memory", "memory", "all_reduce", 2, (8, 1024, 4096))
TUTTI = Variant("tutti_plain", "tutti", "memory", "")
# The driver gets the name of its results file as its last option. Rank 0 writes one record into it.
RECORD = (
    'for last; do :; done; if [ $COMPARE_RANK = 0 ]; then echo \'{"median_us": 1, "slowest_median_us": 1, "mean_us": 1,'
    ' "slowest_mean_us": 1, "loop_us": 1, "wrong": 0}\' >>"$last"; fi\n'
)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class JobsTest(unittest.TestCase):
    def setUp(self) -> None:
        become_reaper()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = Path(folder.name)

    def run_with(self, script: str, settings: Settings = SETTINGS, case: Case = CASE) -> Outcome:
        driver = self.bin / "compare_tutti"
        driver.write_text(f"#!/bin/sh\n{script}\n")
        driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
        return run_job(TUTTI, case, case.sizes, settings, self.bin, 2)

    def test_a_good_job_brings_its_records(self) -> None:
        outcome = self.run_with(RECORD * 3)
        self.assertEqual((len(outcome.records), outcome.failure), (3, ""))

    def test_a_job_that_hangs_is_cut_off_and_keeps_what_it_has(self) -> None:
        outcome = self.run_with(RECORD + "exec sleep 3600", HASTY)
        self.assertEqual((len(outcome.records), outcome.failure), (1, f"cut off after {HASTY_S:g} s"))
        self.assertEqual(descendants(os.getpid()), [])

    def test_a_process_that_was_left_behind_in_a_session_of_its_own_is_ended(self) -> None:
        told = self.bin / "pid"
        stubborn = f"setsid sh -c 'trap \"\" TERM; echo $$ >{told}; sleep 600 & wait; wait'"
        script = f"[ $COMPARE_RANK = 1 ] || {stubborn} &\nuntil [ -s {told} ]; do sleep 0.01; done"
        self.run_with(script + "\n" + RECORD * 3)
        self.assertFalse(alive(int(told.read_text())))
        self.assertEqual(descendants(os.getpid()), [])

    def test_a_rank_that_fails_ends_the_job_with_its_words(self) -> None:
        outcome = self.run_with('if [ $COMPARE_RANK = 1 ]; then echo "no such device" >&2; exit 3; fi; exec sleep 3600')
        self.assertEqual((outcome.records, outcome.failure), ([], "failed: no such device"))
        self.assertEqual(descendants(os.getpid()), [])

    def test_busy_loops_of_one_session_run_beside_a_job_and_end_with_it(self) -> None:
        for same_session in (False, True):
            with JobLoad(Load(session_loops=3) if same_session else Load(loops=3)):
                while len(loops := [pid for pid in descendants(os.getpid()) if alive(pid)]) < 3:
                    time.sleep(0.01)
                sessions = {os.getsid(pid) for pid in loops}
            self.assertEqual(len(sessions), 1)
            self.assertEqual(os.getsid(0) in sessions, same_session)
            self.run_with(f"cut -d ' ' -f 6 /proc/self/stat >{self.bin}/session\n{RECORD}")  # the session of a rank
            self.assertEqual(int((self.bin / "session").read_text()), os.getsid(0))
            while any(alive(pid) for pid in loops):
                time.sleep(0.01)

    def test_a_quota_applies_to_the_ranks_of_the_job_and_is_removed_with_it(self) -> None:
        if why := why_no_quota():
            return print(f"inner skip: quota: {why}")
        case = Case("busy", "memory", "all_reduce", 2, (8,), load=Load(quota_percent=20))
        outcome = self.run_with(f"cat /proc/self/cgroup >{self.bin}/cgroup\n{RECORD}", case=case)
        self.assertEqual((len(outcome.records), outcome.failure), (1, ""))
        self.assertIn(f"/tutti-compare-{os.getpid()}\n", (self.bin / "cgroup").read_text())
        self.assertEqual(list(Path("/sys/fs/cgroup").glob(f"**/tutti-compare-{os.getpid()}")), [])

    def test_a_missing_driver_is_a_failure(self) -> None:
        outcome = run_job(TUTTI, CASE, (8,), SETTINGS, self.bin, 2)
        self.assertTrue(outcome.failure.startswith("failed: "), outcome.failure)

    def test_a_round_goes_on_behind_the_size_that_was_cut_off_and_does_not_try_it_again(self) -> None:
        runs = self.bin / "runs"
        count = f'[ $COMPARE_RANK = 1 ] || echo "$*" >>{runs}\n'
        both = 'case " $* " in *"--sizes 8,4096"*) ' + RECORD.replace("\n", " ;; esac\n")
        self.run_with(count + RECORD + both + 'case " $* " in *,1024,*) exec sleep 3600;; esac', HASTY)
        runs.unlink()
        settings = Settings(sections=("memory",), ranks=(2,), sizes=CASE.sizes, trials=1, cell_limit_s=HASTY_S)
        run, results = Run(settings, self.bin, self.bin), Results(machine={"cores": 2})
        self.assertEqual(run.libraries, ["tutti"])
        for number in range(2):
            run.run_round(results, number)
        plain = {cell.bytes: cell for cell in results.cells.values() if cell.variant == "tutti_plain"}
        self.assertEqual([len(plain[size].times.get("loop_us", [])) for size in CASE.sizes], [2, 0, 2])
        self.assertEqual([plain[size].note for size in CASE.sizes], ["", f"cut off after {HASTY_S:g} s", ""])
        tried = [line for line in runs.read_text().splitlines() if "--tutti-" not in line]
        self.assertEqual([line.split("--sizes ")[1].split()[0] for line in tried], ["8,1024,4096", "4096", "8,4096"])


class LaunchTest(unittest.TestCase):
    place = JobEnvironment(Path("bin"), Path("here"), 2, ("left", "right"), "127.0.0.1:1234", 5)

    def test_only_peers_get_the_tuned_malloc(self) -> None:
        tuned = Case("tuned", "memory", "all_reduce", 2, (8,), tuned=True)
        for variant in variants("memory"):
            for process in launch(variant, tuned, self.place, []):
                self.assertEqual("MALLOC_MMAP_MAX_" in process.env, not variant.ours, variant.name)

    def test_open_mpi_yields_when_ranks_outnumber_cores_or_cores_are_busy(self) -> None:
        ompi = next(variant for variant in variants("memory") if variant.name == "ompi")
        for ranks, load, yields in ((2, Load(), "0"), (4, Load(), "1"), (2, Load(loops=1), "1")):
            [process] = launch(ompi, Case("memory", "memory", "all_reduce", ranks, (8,), load=load), self.place, [])
            self.assertEqual(process.arguments[process.arguments.index("mpi_yield_when_idle") + 1], yields)

    def test_on_busy_cores_nothing_is_pinned_and_libraries_that_do_not_yield_are_left_out(self) -> None:
        case = Case("busy", "memory", "all_reduce", 2, (8,), load=Load(loops=1))
        found = variants_of(case, ())
        self.assertTrue({"tutti_plain", "ompi", "gloo_ring"} <= {variant.name for variant in found})
        self.assertFalse({"mpich", "mpich5", "impi"} & {variant.name for variant in found})
        for variant in found:
            arguments = driver_arguments(variant, case, (8,), 1, 100.0)
            self.assertEqual(arguments[-arguments[::-1].index("--pinned")], "0")

    def test_every_rank_of_a_session_case_goes_through_setsid(self) -> None:
        case = Case("sessions", "memory", "all_reduce", 4, (8,), own_sessions=True)
        for variant in variants("memory"):
            for process in launch(variant, case, self.place, []):
                driver = process.arguments.index(str(Path("bin") / f"compare_{variant.maker}"))
                self.assertEqual(process.arguments[driver - 2 : driver], ["setsid", "--wait"])

    def test_ranks_are_dealt_to_machines_in_halves(self) -> None:
        self.assertEqual(
            [machine_of(rank, 4, ("left", "right")) for rank in range(4)], ["left", "left", "right", "right"]
        )

    def test_names_are_unique_and_only_all_reduce_has_every_variant(self) -> None:
        for place in ("memory", "loopback", "veth"):
            names = [variant.name for variant in variants(place)]
            self.assertEqual(len(names), len(set(names)))
        broadcast = Case("collectives", "memory", "broadcast", 2, (8,))
        self.assertNotIn("gloo_bcube", [variant.name for variant in variants_of(broadcast, ())])
        self.assertEqual([variant.name for variant in variants_of(broadcast, ("mpich",))], ["mpich"])

    def test_another_build_is_a_peer(self) -> None:
        found = variants_beside("memory", "/other/bin")
        self.assertEqual([variant.name for variant in found], ["beside_registered", "beside_heap", "beside_plain"])
        case = Case("memory", "memory", "all_reduce", 2, (8,))
        names = [variant.name for variant in variants_of(case, ("tutti_plain", "beside_plain"), "/other/bin")]
        self.assertEqual(names, ["tutti_plain", "beside_plain"])
        started = launch(found[0], case, self.place, [])
        self.assertEqual([process.arguments[0] for process in started], ["/other/bin/compare_tutti"] * 2)

    def test_a_foreign_jobs_variables_do_not_reach_ours(self) -> None:
        os.environ["OMPI_COMM_WORLD_RANK"] = "3"
        self.addCleanup(os.environ.pop, "OMPI_COMM_WORLD_RANK")
        self.assertNotIn("OMPI_COMM_WORLD_RANK", clean_environment())
        self.assertIn("PATH", clean_environment())


if __name__ == "__main__":
    unittest.main()
