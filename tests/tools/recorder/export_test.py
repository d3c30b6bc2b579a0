"""Tests of exported recordings with the programs that read them elsewhere: PyTorch's analyser of flight recorders, and
the parsers of prometheus_client.

export_test.py TUTTI FOLDER PROMISE: TUTTI is the tutti command, FOLDER contains the programs recorded_job and
exported_job, and each function with the name of a promise is one test. Every test runs a job of four processes and
compares the values that were exported with what the job did. Status 77 (skipped): torch or
prometheus_client is missing.
"""

import collections
import importlib.util
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = range(4)
PATIENCE_S = 60 * float(os.environ.get("TUTTI_TEST_PATIENCE", "1"))


class Job:
    """A job whose recordings and dumps are in a temporary folder."""

    def __init__(self, tutti, programs, folder):
        self.tutti = tutti
        self.programs = pathlib.Path(programs)
        self.folder = pathlib.Path(folder)
        self.dumps = self.folder / "dumps"
        self.dumps.mkdir()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
        self.environment.update(TUTTI_MEASURE="0", TUTTI_RECORD_DIR=str(self.folder / "records"))
        self.process = None

    def start(self, program, *arguments, **variables):
        command = [self.tutti, "run", "-n", str(len(RANKS)), "--grace-ms", "5000", "--", self.programs / program]
        self.process = subprocess.Popen([*command, *arguments], env={**self.environment, **variables},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self):
        """Waits until the job ends by itself, and returns its status and output."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        status, self.process = self.process.returncode, None
        return status, output

    def run(self, program, *arguments, **variables):
        self.start(program, *arguments, **variables)
        return self.finish()

    def end(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)  # tutti run's ranks end with it
            self.process.communicate()
            self.process = None

    def tool(self, *arguments):
        done = subprocess.run([self.tutti, *arguments], env=self.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S)
        assert done.returncode == 0, (arguments, done)
        return done

    def dump(self):
        """Writes the dumps, and returns them by rank, and the messages of the tool."""
        for old in self.dumps.iterdir():
            old.unlink()
        messages = self.tool("doctor", "--torch-dump", self.dumps / "rank_").stderr
        return {rank: pickle.loads((self.dumps / f"rank_{rank}").read_bytes()) for rank in RANKS}, messages

    def analyse(self):
        """Runs PyTorch's analyser. Returns what it prints, and the collectives in its data base."""
        result = self.folder / "result"
        analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
        done = subprocess.run([*analyser, self.dumps, "-o", result], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done
        _, data_base = pickle.loads(result.read_bytes())
        return done.stderr, data_base

    def metrics(self, *arguments):
        """The samples of the metrics, as {name: {labels: value}}. Both formats must have the same samples. Call it when
        the job has ended or is stopped."""
        from prometheus_client import openmetrics, parser
        import prometheus_client.openmetrics.parser
        text = self.tool("metrics", *arguments).stdout
        families = list(openmetrics.parser.text_string_to_metric_families(text))
        older = self.tool("metrics", "--format", "prometheus", *arguments).stdout
        older_families = list(parser.text_string_to_metric_families(older))
        older_types = {family.name: family.type for family in older_families}
        for family in families:
            assert family.documentation, family
            if family.type == "info":
                assert older_types[family.name + "_info"] == "gauge", older_types
            else:
                assert older_types[family.name] == family.type, older_types
        assert samples_of(families).keys() == samples_of(older_families).keys()
        for name, samples in samples_of(families).items():
            others = samples_of(older_families)[name]
            assert samples.keys() == others.keys(), name
            # Ages and timestamps depend on when the recordings are read.
            assert samples == others or name.endswith(("_age_seconds", "_timestamp_seconds")), name
        units = {family.name: family.unit for family in families if family.unit}
        assert units["tutti_wait_seconds"] == "seconds" and units["tutti_call_bytes"] == "bytes", units
        return samples_of(families)


def samples_of(families):
    samples = collections.defaultdict(dict)
    for family in families:
        for sample in family.samples:
            labels = frozenset((k, v) for k, v in sample.labels.items())
            assert labels not in samples[sample.name], sample
            samples[sample.name][labels] = sample.value
    return samples


def values(samples, rank, **labels):
    """The values of the samples of one rank with these labels, by the value of the remaining label."""
    found = {}
    for keys, value in samples.items():
        keys = dict(keys)
        if keys.pop("rank") != str(rank) or any(keys.pop(k, None) != v for k, v in labels.items()):
            continue
        rest = {k: v for k, v in keys.items() if k not in ("job", "communicator")}
        assert len(rest) <= 1, rest
        found[next(iter(rest.values()), "")] = value
    return found


def wait_until(condition):
    latest = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < latest, condition
        time.sleep(0.05)


# The collectives of exported_job, in order: name, numbers of elements of the input and the output by rank, and type.
# A list of no number means that the recorder does not know it.
def same(count):
    return [[count]] * 4


EVERY_CALL = [
    ("nccl:all_reduce", same(1000), same(1000), "Float"),
    ("nccl:broadcast", same(30), same(30), "Half"),
    ("nccl:reduce", same(20), same(20), "Double"),
    ("nccl:_all_gather_base", same(5), same(20), "Byte"),
    ("nccl:_reduce_scatter_base", same(24), same(6), "BFloat16"),
    ("nccl:all_to_all", same(16), same(16), "Int"),
    ("nccl:gather", same(3), [[0], [12], [0], [0]], "Long"),
    ("nccl:scatter", [[0], [0], [0], [36]], same(9), "Char"),
    ("nccl:all_reduce_barrier", same(0), same(0), None),
    ("nccl:all_gather_v", [[]] * 4, same(10), "UInt32"),
    ("nccl:reduce_scatter_v", same(10), [[]] * 4, "UInt64"),
    ("nccl:all_reduce", same(1 << 20), same(1 << 20), "Float8_e4m3fn"),
]


def every_call_has_its_sizes_and_types(job):
    before_ns = time.time_ns()
    status, output = job.run("exported_job", "every")
    after_ns = time.time_ns()
    assert status == 0, output
    dumps, messages = job.dump()
    for rank, dump in dumps.items():
        assert dump["version"] == "2.10" and dump["comm_lib_version"].startswith("Tutti "), dump["version"]
        first = [entry for entry in dump["entries"] if entry["process_group"][1] == "default_pg"]
        assert len(first) == len(EVERY_CALL), [entry["profiling_name"] for entry in first]
        for number, (entry, (name, inputs, outputs, kind)) in enumerate(zip(first, EVERY_CALL), 1):
            assert entry["profiling_name"] == name, entry
            assert entry["input_sizes"] == [inputs[rank]] and entry["output_sizes"] == [outputs[rank]], (rank, entry)
            assert kind is None or entry["input_dtypes"] == entry["output_dtypes"] == [kind], entry
            assert entry["collective_seq_id"] == number and not entry["is_p2p"], entry
            assert entry["state"] == "completed" and entry["retired"], entry
            assert before_ns < entry["time_created_ns"] <= entry["time_discovered_completed_ns"] < after_ns, entry
        assert [entry["record_id"] for entry in dump["entries"]] == list(range(len(dump["entries"])))
    transfers = {rank: [(entry["process_group"][0].partition(" ")[2], entry["profiling_name"], entry["p2p_seq_id"],
                         entry["input_sizes"]) for entry in dump["entries"] if entry["is_p2p"]]
                 for rank, dump in dumps.items()}
    # The numbers begin with 2, because the all_to_all_v consisted of a transfer in each direction.
    assert transfers == {0: [("0->1", "nccl:send 0->1", 2, [[8]]), ("0->1", "nccl:send 0->1", 3, [[8]])],
                     1: [("0->1", "nccl:recv 1<-0", 2, [[8]]), ("0->1", "nccl:recv 1<-0", 3, [[8]])],
                     2: [("3->2", "nccl:recv 0<-1", 2, [[5]])],
                     3: [("3->2", "nccl:send 1->0", 2, [[5]])]}, transfers
    variable = {rank: [(entry["profiling_name"], entry["collective_seq_id"], entry["input_sizes"])
                       for entry in dump["entries"] if entry["process_group"][0].endswith(" v")]
                for rank, dump in dumps.items()}
    assert variable == {rank: [("nccl:all_to_all", 1, [[]])] for rank in RANKS}, variable
    # Of the group of each rank only the send is recorded, and its receive is not.
    assert re.search(r"^tutti doctor: 4 calls are in no dump", messages), messages
    printed, data_base = job.analyse()
    assert "mismatch" not in printed.lower() and "Not all ranks" not in printed, printed
    assert all(one.pass_check for one in data_base.collectives)
    names = collections.Counter(one.collective_name for one in data_base.collectives)
    assert names["nccl:all_reduce"] == 2 and names["nccl:send 0->1"] + names["nccl:recv 1<-0"] >= 2, names


def communicators_are_groups_of_ranks_of_the_job(job):
    status, output = job.run("exported_job", "halves")
    assert status == 0, output
    dumps, _ = job.dump()
    for rank, dump in dumps.items():
        groups = {group["desc"]: group["ranks"] for group in dump["pg_config"].values()}
        assert groups == {"default_pg": "[0, 1, 2, 3]", "undefined": str([rank % 2, rank % 2 + 2])}, groups
    printed, data_base = job.analyse()
    assert "Not all ranks" not in printed and all(one.pass_check for one in data_base.collectives), printed
    halves = [sorted(one.expected_ranks) for one in data_base.collectives if one.input_sizes == [[11]]]
    assert sorted(halves) == [[0, 2], [1, 3]], halves
    assert {group.size for group in data_base.groups} == {2, 4} and len(data_base.groups) == 3, data_base.groups
    samples = job.metrics()
    ranks = [dict(labels) for labels in samples["tutti_rank_info"]]
    of_halves = [(int(one["job_rank"]), int(one["rank"])) for one in ranks if one["communicator"] != one["job"]]
    assert sorted(of_halves) == [(0, 0), (1, 0), (2, 1), (3, 1)], of_halves
    calls = {one for one in samples["tutti_calls_total"].items() if dict(one[0])["communicator"] != dict(one[0])["job"]}
    assert len(calls) == 4 and all(count == 1 and ("collective", "all_reduce") in labels for labels, count in calls)


def a_killed_rank_is_missing(job):
    job.run("recorded_job", "killed", job.folder)
    job.dump()
    printed, data_base = job.analyse()
    assert "Not all ranks joining collective, sequence number: 6" in printed, printed
    assert "missing ranks: {2}" in printed and "collective: nccl:all_reduce" in printed, printed
    assert "all_reduce #6 (1024 float32, min, one_shot)" in printed and "caused by rank 2" in printed, printed
    assert [one.pass_check for one in data_base.collectives] == [True] * 6
    assert data_base.collectives[5].missing_ranks == {2}


def a_stopped_rank_is_missing_while_the_job_runs(job):
    job.start("recorded_job", "stopped", job.folder)

    def all_others_wait():
        said = job.tool("doctor").stdout if (job.folder / "ready-2").exists() else ""
        return "ranks 0, 1, 3 are in all_reduce #6" in said

    wait_until(all_others_wait)
    dumps, _ = job.dump()
    last = {rank: (dump["entries"][-1]["collective_seq_id"], dump["entries"][-1]["state"])
            for rank, dump in dumps.items()}
    assert last == {0: (6, "started"), 1: (6, "started"), 2: (5, "completed"), 3: (6, "started")}, last
    assert dumps[0]["pg_status"]["0"] == {"last_enqueued_collective": 6, "last_started_collective": 6,
                                          "last_completed_collective": 5}
    printed, _ = job.analyse()
    assert "missing ranks: {2}" in printed and "collective state: started" in printed, printed


def another_collective_is_a_mismatch(job):
    job.run("recorded_job", "other", job.folder)
    job.dump()
    printed, data_base = job.analyse()
    assert "Collective sequence number: 6 has errors" in printed and "COLLECTIVE_TYPE_MISMATCH" in printed, printed
    # The analyser takes the rank whose file it reads first as the right one.
    culprits = set(data_base.collectives[-1].mismatch_collectives)
    assert culprits in ({2}, {0, 1, 3}), culprits


def another_count_is_a_mismatch(job):
    status, output = job.run("exported_job", "count")
    assert status != 0 and "count 17" in output, output
    job.dump()
    printed, data_base = job.analyse()
    assert "Collective sequence number: 2 has errors" in printed and "SIZE_OR_SYNTAX_MISMATCH" in printed, printed
    assert "[[16]]" in printed and "[[17]]" in printed, printed
    assert set(data_base.collectives[-1].mismatch_collectives) in ({1}, {0, 2, 3}), printed


def a_rank_that_does_not_send_is_missing(job):
    status, output = job.run("exported_job", "silent", TUTTI_TIMEOUT_MS="1500")
    assert status != 0, output
    job.dump()
    printed, _ = job.analyse()
    assert "Not all ranks joining collective, sequence number: 1\n" in printed, printed
    transfer = printed[printed.index(" 2->3\n"):]
    assert "collective: nccl:recv 1<-0" in transfer and "missing ranks: {2}" in transfer, printed


def a_rank_that_makes_no_variable_call_is_missing(job):
    status, output = job.run("exported_job", "variable", TUTTI_TIMEOUT_MS="1500")
    assert status != 0, output
    job.dump()
    printed, data_base = job.analyse()
    transfer = printed[printed.index(" v\n"):]
    assert "Not all ranks joining collective, sequence number: 3" in printed, printed
    assert "collective: nccl:all_to_all" in transfer and "missing ranks: {1}" in transfer, printed
    calls = [one for one in data_base.collectives if one.collective_name == "nccl:all_to_all"]
    assert [one.collective_seq_id for one in calls if one.missing_ranks is None] == [1, 2], calls


def overwritten_calls_are_no_mismatch(job):
    # The ranks 0 and 1 make 20 operations, the others 10. Each keeps 16.
    status, output = job.run("recorded_job", "dance", job.folder, TUTTI_RECORD="16")
    assert status == 0, output
    dumps, _ = job.dump()
    first = {rank: min(entry["collective_seq_id"] for entry in dump["entries"] if not entry["is_p2p"])
             for rank, dump in dumps.items()}
    assert set(first.values()) == {3}, first
    printed, data_base = job.analyse()
    assert "Not all ranks" not in printed and all(one.pass_check for one in data_base.collectives), printed
    names = collections.Counter(one.collective_name[:9] for one in data_base.collectives)
    assert names["nccl:all_"] == 8 and names["nccl:send"] + names["nccl:recv"] == 8, names


# Calls and bytes of exported_job in the mode "every", by collective. Bytes are of the longer buffer of a rank. The
# lengths that differ between ranks are those of the root.
EVERY_CALLS = {"all_reduce": 2, "broadcast": 1, "reduce": 1, "all_gather": 2, "reduce_scatter": 2, "all_to_all": 2,
               "gather": 1, "scatter": 1, "barrier": 1}
EVERY_BYTES = {"all_reduce": 4 * 1000 + (1 << 20), "broadcast": 2 * 30, "reduce": 8 * 20, "all_gather": 20 + 4 * 10,
               "reduce_scatter": 2 * 24 + 8 * 10, "all_to_all": 4 * 16 + 4 * 8, "barrier": 0}


def metrics_are_what_the_job_did(job):
    status, output = job.run("exported_job", "every")
    assert status == 0, output
    samples = job.metrics()
    calls, size = samples["tutti_calls_total"], samples["tutti_call_bytes_total"]
    for rank in RANKS:
        counted = values(calls, rank, on="host")
        # A rank sends or receives alone twice or once, and once in a group.
        assert counted == {**EVERY_CALLS, "send_recv": 3 if rank < 2 else 2}, (rank, counted)
        counted = values(size, rank)
        expected = {**EVERY_BYTES, "gather": 8 * 3 * (4 if rank == 1 else 1), "scatter": 9 * (4 if rank == 3 else 1),
                    "send_recv": 16 + (2 * 32 if rank < 2 else 20)}
        assert counted == expected, (rank, counted)
        assert set(values(samples["tutti_errors_total"], rank).values()) == {0}
        assert values(samples["tutti_rank_state"], rank)["ended"] == 1
    assert not samples["tutti_tcp_retransmitted_segments_total"], "the ranks have no TCP connections"
    ranks = [dict(labels) for labels in samples["tutti_rank_info"]]
    assert {one["program"] for one in ranks} == {"exported_job"} and {one["transport"] for one in ranks} == {"shm"}
    assert samples["tutti_recordings"] == {frozenset(): 4}, samples["tutti_recordings"]
    assert job.metrics("--keep-s", "0")["tutti_recordings"] == {frozenset(): 0}
    assert job.metrics("--job", "00000000")["tutti_recordings"] == {frozenset(): 0}
    files = [path for path in (job.folder / "records").iterdir() if "-r0-" in path.name]
    assert job.metrics(*files)["tutti_recordings"] == {frozenset(): len(files)}


# tests/machines compares the numbers with those of the kernel while segments are lost.
def over_tcp_there_are_counts_of_segments_that_were_sent_again(job):
    status, output = job.run("exported_job", "every", TUTTI_TRANSPORT="tcp")
    assert status == 0, output
    samples = job.metrics()["tutti_tcp_retransmitted_segments_total"]
    for rank in RANKS:
        counts = values(samples, rank)
        assert counts.keys() == {str(peer) for peer in RANKS if peer != rank}, (rank, counts)
        assert all(count >= 0 for count in counts.values()), (rank, counts)


def a_late_rank_has_the_waits(job):
    start = time.monotonic()
    status, output = job.run("exported_job", "late")
    longest_s = time.monotonic() - start
    assert status == 0, output
    samples = job.metrics()
    for rank in (0, 1, 3):
        for name in ("tutti_wait_seconds_total", "tutti_absent_seconds_total"):
            waits = values(samples[name], rank)
            assert 0 < waits.get("2", 0) < longest_s, (rank, name, waits)
            assert all(wait < waits["2"] / 2 for peer, wait in waits.items() if peer != "2"), (rank, name, waits)


def errors_are_counted(job):
    job.run("recorded_job", "killed", job.folder)
    samples = job.metrics()
    for rank in (0, 1, 3):
        errors = {code: count for code, count in values(samples["tutti_errors_total"], rank).items() if count > 0}
        assert sum(errors.values()) == 1 and errors.keys() <= {"peer lost", "aborted"}, (rank, errors)
        assert values(samples["tutti_calls_total"], rank, on="host") == {"all_reduce": 6}
        assert values(samples["tutti_rank_state"], rank)["ended"] == 1
    assert any("peer lost" in dict(labels).values() and value for labels, value in
               samples["tutti_errors_total"].items())
    assert values(samples["tutti_calls_total"], 2, on="host") == {"all_reduce": 5}
    assert values(samples["tutti_rank_state"], 2)["dead"] == 1


def the_file_of_a_running_job_is_replaced_whole(job):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    job.start("recorded_job", "work", job.folder)
    wait_until(lambda: all((job.folder / f"ready-{rank}").exists() for rank in RANKS))
    output = job.folder / "metrics" / "tutti.prom"
    output.parent.mkdir()
    writer = subprocess.Popen([job.tutti, "metrics", "--output", output, "--interval-ms", "100"], env=job.environment)
    try:
        wait_until(output.exists)
        counts, files = [], set()
        latest = time.monotonic() + PATIENCE_S
        while len(files) < 5:
            assert time.monotonic() < latest and writer.poll() is None
            with open(output, encoding="utf-8") as file:
                files.add(os.fstat(file.fileno()).st_ino)
                text = file.read()
            assert text.endswith("# EOF\n"), text[-100:]
            counts.append(values(samples_of(text_string_to_metric_families(text))["tutti_calls_total"], 0, on="host"))
            assert set(path.suffix for path in output.parent.iterdir()) <= {".prom", ".tmp"}
            time.sleep(0.02)
        totals = [one["all_reduce"] for one in counts]
        assert totals == sorted(totals) and totals[0] >= 5 and totals[-1] > totals[0], totals
        samples = samples_of(text_string_to_metric_families(job.tool("metrics").stdout))
        assert values(samples["tutti_rank_state"], 0)["alive"] == 1
        assert values(samples["tutti_call_age_seconds"], 0)[""] < PATIENCE_S
        began = values(samples["tutti_last_call_timestamp_seconds"], 0)[""]
        assert abs(time.time() - began) < PATIENCE_S, began
    finally:
        writer.kill()
        writer.wait()


def main():
    tutti, programs, promise = sys.argv[1:]
    missing = [name for name in ("torch", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: this Python lacks {', '.join(missing)}; scripts/setup --python installs it")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(tutti, programs, folder)
        try:
            globals()[promise](job)
        finally:
            job.end()


if __name__ == "__main__":
    main()
