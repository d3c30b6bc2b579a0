"""Tests of ranks as processes: fork, Ctrl-C, the end of the interpreter, and the death of a rank."""

import signal
import subprocess
import sys
import time

import pytest
from conftest import LIMIT_S, TREE, run_python
from patience import eventually

HEAD = """
import os, sys, threading, time
import numpy, tutti
"""


def test_example_sums_over_four_processes():
    done = run_python([str(TREE / "python/examples/all_reduce.py")], ranks=4)
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4: 10.0 ... 10.0" in done.stdout


def test_unique_id_and_spawned_processes(script):
    done = run_python(
        [
            script(
                HEAD
                + """
import multiprocessing

def rank_of(rank, unique_id, results):
    comm = tutti.Communicator(rank=rank, size=3, unique_id=unique_id)
    results.put((rank, comm.all_reduce(numpy.array([rank + 1])).tolist()))
    comm.finalize()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    unique_id = tutti.UniqueId.create()
    assert tutti.UniqueId.from_text(unique_id.to_text()) == unique_id
    ranks = [context.Process(target=rank_of, args=(r, unique_id, results)) for r in range(3)]
    for process in ranks: process.start()
    print(sorted(results.get(timeout=50) for _ in ranks))
    for process in ranks: process.join()
    print([process.exitcode for process in ranks])
"""
            )
        ]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[(0, [6]), (1, [6]), (2, [6])]", "[0, 0, 0]"]


def test_forked_child_may_only_drop_its_copy(script):
    done = run_python(
        [
            script(
                HEAD
                + """
comm = tutti.Communicator()
memory = comm.allocate(10)
work = comm.all_reduce(numpy.ones(3), blocking=False)
work.wait()
child = os.fork()
if child == 0:
    code = 0
    for call in (lambda: comm.all_reduce(numpy.ones(1)), comm.barrier, work.wait, lambda: comm.split(0), comm.abort,
                 lambda: comm.send(numpy.ones(1), 1 - comm.rank), lambda: comm.allocate(3)):
        try:
            call()
        except tutti.InvalidArgumentError:
            continue
        code = 3
    assert (comm.rank, comm.size) == (int(os.environ["TUTTI_RANK"]), 2)
    one = tutti.Communicator.create_all(1)[0]  # a communicator of the child
    assert one.all_reduce(numpy.ones(1))[0] == 1
    del work, comm
    sys.exit(code)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert comm.all_reduce(numpy.ones(1))[0] == 2
memory[:] = 1
assert comm.all_reduce(memory)[0] == 2
"""
            )
        ],
        ranks=2,
    )
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "import builtins; builtins.held = comm",  # never destroyed
        "work = comm.all_reduce(numpy.ones(1 << 20), blocking=False)",  # only rank 0 makes this call
        "comm.all_reduce(numpy.ones(1 << 20), blocking=False)",
        "threading.excepthook = lambda *_: None;"  # the other rank leaves the job
        "threading.Thread(target=lambda: comm.all_reduce(numpy.ones(1 << 20)), daemon=True).start(); time.sleep(0.2)",
        "group = tutti.Group(); comm.all_reduce(numpy.ones(9), group=group)",
        "memory = comm.allocate(1000); view = memoryview(memory)",
        "comm.ring = comm",  # a reference cycle
        "comm.finalize()",
        "comm.abort()",
        "raise SystemExit",
    ],
)
def test_interpreter_ends_in_peace_with_everything_alive(script, ending):
    done = run_python(
        [
            script(
                HEAD
                + f"""
comm = tutti.Communicator()
try:
    comm.barrier()
except tutti.AbortedError:  # rank 0 can leave the barrier and abort before rank 1 sees the end of the barrier
    assert "abort" in {ending!r}
if comm.rank == 0:
    {ending}
"""
            )
        ],
        ranks=2,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "nanobind" not in done.stderr and "Traceback" not in done.stderr


def test_daemon_threads_that_come_back_at_the_end_do_no_harm(script):
    # Threads that return from calls at any moment while the interpreter ends. Without protection, Python would end
    # such a thread in the middle of C++ code.
    done = run_python(
        [
            script(
                HEAD
                + """
comms = tutti.Communicator.create_all(1) + tutti.Communicator.create_all(1)
def work(comm):
    x = numpy.ones(1)
    while True: comm.barrier(); comm.all_reduce(x)
for comm in comms: threading.Thread(target=work, args=(comm,), daemon=True).start()
time.sleep(0.1)
"""
            )
        ]
    )
    assert done.returncode == 0, done.stderr


def sleeps(pid):
    """Whether the main thread of a process sleeps at each of several checks. A thread that has not reached its call yet
    is running or waits for a CPU, which does not count as sleeping."""
    for _ in range(8):
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] != "S":
                return False
        time.sleep(0.005)
    return True


def interrupted(script, text, waits=True):
    """Starts a process, and interrupts it after it has printed "ready" and, if `waits`, when it sleeps in its call.
    Returns (exit code, output)."""
    process = subprocess.Popen(
        [sys.executable, script(HEAD + text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell without job control starts its background commands, such as these tests, with this signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout.readline() == "ready\n"
        if waits:
            assert eventually(lambda: sleeps(process.pid))
        else:
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output
    finally:
        process.kill()


def test_ctrl_c_ends_a_blocking_call(script):
    code, output = interrupted(
        script,
        """
comms = tutti.Communicator.create_all(2)
print("ready", flush=True)
try:
    comms[0].all_reduce(numpy.ones(3))
except KeyboardInterrupt:
    print("interrupted")
try:
    comms[0].barrier()
except tutti.AbortedError as error:
    print(error.scope)
""",
    )
    assert (code, output) == (0, "interrupted\ncommunicator\n")


@pytest.mark.parametrize(
    "call",
    [
        "comms[0].all_reduce(numpy.ones(3), blocking=False).wait()",
        "comms[0].receive(numpy.ones(3), 1)",
        "comms[0].barrier()",
        "comms[0].split(0)",
        "tutti.Communicator(rank=0, size=2, root='127.0.0.1:0')",
    ],
)
def test_ctrl_c_ends_every_wait(script, call):
    code, output = interrupted(
        script,
        f"""
comms = tutti.Communicator.create_all(2)
unique_id = tutti.UniqueId.create()
print("ready", flush=True)
{call.replace("root='127.0.0.1:0'", "unique_id=unique_id")}
""",
    )
    assert code in (1, -signal.SIGINT) and "KeyboardInterrupt" in output, output


def test_ctrl_c_leaves_a_handler_of_the_programs_own_alone(script):
    code, output = interrupted(
        script,
        """
import signal
comms = tutti.Communicator.create_all(2)
signal.signal(signal.SIGINT, lambda *_: print("mine", flush=True))
threading.Timer(2, lambda: comms[1].all_reduce(numpy.ones(3))).start()
print("ready", flush=True)
print(comms[0].all_reduce(numpy.ones(3)))
""",
    )
    assert (code, output) == (0, "mine\n[2. 2. 2.]\n")


def test_short_calls_survive_ctrl_c(script):
    code, output = interrupted(
        script,
        """
comm = tutti.Communicator.create_all(1)[0]
x = numpy.ones(1)
try:
    print("ready", flush=True)
    while True: comm.all_reduce(x)
except KeyboardInterrupt:
    time.sleep(0.5)
    comm.all_reduce(x)
    print("alive")
""",
        waits=False,
    )
    assert (code, output) == (0, "alive\n")


def test_death_of_a_rank_is_told_and_the_others_go_on(script):
    done = run_python(
        [
            script(
                HEAD
                + """
comm = tutti.Communicator()
comm.barrier()
if comm.rank == 1: os._exit(0)
try:
    comm.all_reduce(numpy.ones(10))
except ConnectionError as error:
    assert isinstance(error, tutti.PeerLostError) and error.rank == 1 and error.code == "peer lost", error
    smaller = comm.shrink()
    assert smaller.all_reduce(numpy.ones(10))[0] == smaller.size == 2
    print("went on", flush=True)
"""
            )
        ],
        ranks=3,
    )
    assert done.stdout.count("went on") == 2, done.stdout + done.stderr


def test_ranks_that_disagree_are_named(script):
    done = run_python(
        [
            script(
                HEAD
                + """
comm = tutti.Communicator()
try:
    comm.all_reduce(numpy.ones(10 + (comm.rank == 2)))
except tutti.MismatchError as error:
    assert error.rank == 2 and error.scope == "call", error
    print("told", flush=True)
assert comm.all_reduce(numpy.ones(1))[0] == 3
"""
            )
        ],
        ranks=3,
    )
    assert done.returncode == 0 and done.stdout.count("told") == 3, done.stdout + done.stderr


def test_single_calls_can_be_uniform_or_have_checksums(script):
    done = run_python(
        [
            script(
                HEAD
                + """
try:
    tutti.Communicator(uniform="sometimes")
except tutti.InvalidArgumentError as error:
    assert "sometimes" in str(error), error
comm = tutti.Communicator(uniform="calls")
for options in ({"uniform": True}, {"checksum": True}, {"uniform": True, "checksum": True}, {}):
    assert comm.all_reduce(numpy.ones(10), **options)[0] == 2, options
    comm.barrier(**options)
# Rank 1 passes another count. Only the vote of a uniform call tells the root of a broadcast.
x = numpy.full(1000 - comm.rank, float(comm.rank))
try:
    comm.broadcast(x, uniform=True)
    print("not told", flush=True)
except tutti.Error:
    print("told", flush=True)
for call in (
    lambda: comm.all_reduce(x, uniform=True, blocking=False),
    lambda: comm.send(x, 1 - comm.rank, checksum=True),
):
    try:
        call()
        print("taken", flush=True)
    except tutti.InvalidArgumentError as error:
        assert "blocking" in str(error), error
with tutti.Communicator.create_all(1)[0] as one:
    try:
        one.all_reduce(x, uniform=True)
        print("taken", flush=True)
    except tutti.InvalidArgumentError as error:
        assert "TUTTI_UNIFORM=calls" in str(error), error
"""
            )
        ],
        ranks=2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] told", "[1] told"], done.stdout + done.stderr
