"""One side of the comparison over RDMA, in a guest of scripts/rdma-vm: side.py PLAN RESULTS.

Both sides (RANK 0 and 1 of 2) execute the cases of the file PLAN together. Side 0 runs the servers of perftest and
ucx_perftest. It writes RESULTS, one JSON object per line, with the fields of the case and `error`, or `value` and
`usage`. `usage` has, for each side, the cost of the program including its start: user and system CPU seconds, voluntary
and involuntary context switches.
"""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time

SIDE = int(os.environ["RANK"])
DEVICE = os.environ["RDMA_VM_DEVICES"].split(",")[0]
MEET_PORT, TOOL_PORT = 29510, 29520
MIB_PER_MB = 1.048576  # factor from MiB/s, which perftest and UCX print, to MB/s (1e6 bytes), which the results have
LIMIT_S = 120
UCX = {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": DEVICE + ":1", "UCX_WARN_UNUSED_ENV_VARS": "n"}


class Peer:
    """The connection to the other side. Both sides send one line of JSON at the same time."""

    def __init__(self):
        address = (os.environ["MASTER_ADDR"], MEET_PORT)
        if SIDE == 0:
            with socket.create_server(address) as server:
                self.connection, _ = server.accept()
        else:
            deadline = time.monotonic() + LIMIT_S
            while True:
                try:
                    self.connection = socket.create_connection(address, timeout=5)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        self.connection.settimeout(2 * LIMIT_S)
        self.address = self.connection.getpeername()[0]
        self.lines = self.connection.makefile("r")

    def exchange(self, value):
        self.connection.sendall((json.dumps(value) + "\n").encode())
        return json.loads(self.lines.readline())


def is_listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    return True
    return False


def start(words, environment=None):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env={**os.environ, **(environment or {})})


def finish(process):
    """Waits for the process and returns its output. Raises RuntimeError if it fails or takes too long."""
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise RuntimeError(f"not finished within {LIMIT_S} s: {output[-300:]}") from None
    if process.returncode != 0:
        raise RuntimeError(f"status {process.returncode}: {output[-300:]}")
    return output


def server_and_client(peer, server, client, environment=None):
    """Runs the server on side 0 and the client on side 1. Returns the client's output on side 1, None on side 0."""
    if SIDE == 0:
        process = start(server, environment)
        deadline = time.monotonic() + LIMIT_S
        while not is_listening(TOOL_PORT) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        peer.exchange("the server listens")
        finish(process)
        return None
    peer.exchange("waiting for the server")
    return finish(start(client, environment))


def perftest(peer, case):
    words = [case["program"], "-d", DEVICE, "-x", "1", "-F", "-u", "18", "-s", str(case["bytes"]),
             "-n", str(case["iterations"]), "-p", str(TOOL_PORT)] + case["options"]
    output = server_and_client(peer, words, words + [peer.address])
    if output is None:
        return None
    # columns of latency: bytes, iterations, minimum, maximum, typical, mean; of bandwidth: bytes, iterations, peak,
    # mean
    rows = re.findall(rf"^ *{case['bytes']} +\d+ +(.*)$", output, re.MULTILINE)
    if not rows:
        raise RuntimeError("no row in its output: " + output[-300:])
    fields = rows[-1].split()
    if case["unit"] == "us":
        return float(fields[3])
    return float(fields[1]) * MIB_PER_MB / (2 if "-b" in case["options"] else 1)


def ucx(peer, case):
    environment = {**UCX, "UCX_RNDV_SCHEME": "put_zcopy"}
    # With -E sleep, tests with puts do not end (UCX 1.13). The target of ucp_put_bw polls without need, so it runs with
    # the lowest priority.
    wait, low_priority = [], []
    if case["program"].startswith("tag"):
        wait = ["-E", "sleep"]
    elif case["program"] == "ucp_put_bw":
        low_priority = ["nice", "-n", "19"]
    server = low_priority + ["ucx_perftest"] + wait + ["-p", str(TOOL_PORT)]
    client = ["ucx_perftest", peer.address] + wait + ["-f", "-t", case["program"], "-s", str(case["bytes"]),
              "-n", str(case["iterations"]), "-w", str(case["warm_up"]),
              "-p", str(TOOL_PORT)]
    output = server_and_client(peer, server, client, environment)
    if output is None:
        return None
    numbers = re.findall(r"[\d.]+", output.strip().splitlines()[-1])
    if len(numbers) < 6:
        raise RuntimeError("no final row in its output: " + output[-300:])
    # columns: iterations; latency at 50 %, mean, overall; bandwidth mean, overall; message rates
    value = float(numbers[3]) if case["unit"] == "us" else float(numbers[5]) * MIB_PER_MB
    if value <= 0:  # happens with ucp_put_bw of 64 MiB and few iterations
        raise RuntimeError("its final row has no value: " + output[-300:])
    return value


def tutti(peer, case):
    file = os.path.join(tempfile.gettempdir(), "perf.json")  # each guest has its own temporary folder
    words = [case["tool"], "perf", case["program"], "-b", str(case["bytes"]), "-e", str(case["bytes"]),
             "-n", str(case["iterations"]), "-w", str(case["warm_up"]), "--in-place", "0",
             "--memory", case["memory"], "--transport", case["transport"]]
    if SIDE == 0:
        words += ["--json", file]
    peer.exchange("both start")
    finish(start(words, {**(UCX if case["transport"] == "ucx" else {}), **case["environment"]}))
    if SIDE == 1:
        return None
    with open(file, encoding="utf-8") as result:
        row = json.load(result)["rows"][0]
    if row["wrong"]:
        raise RuntimeError(f"{row['wrong']} wrong elements")
    return row["time_us"] if case["unit"] == "us" else row["bytes"] / row["time_us"]


def spent():
    """The cost of all child processes that have ended: user and system CPU seconds, voluntary and involuntary context
    switches."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [usage.ru_utime, usage.ru_stime, usage.ru_nvcsw, usage.ru_nivcsw]


KINDS = {"perftest": perftest, "ucx": ucx, "tutti": tutti}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    peer = Peer()
    for case in cases:
        outcome = {}
        before = spent()
        try:
            outcome["value"] = KINDS[case["kind"]](peer, case)
        except (RuntimeError, OSError, ValueError, KeyError) as failure:
            outcome["error"] = str(failure)
        outcome["usage"] = [now - then for now, then in zip(spent(), before)]
        other = peer.exchange(outcome)
        if SIDE == 0:
            values = [each["value"] for each in (outcome, other) if each.get("value") is not None]
            errors = [each["error"] for each in (outcome, other) if "error" in each]
            if values and not errors:
                result = {"value": values[0], "usage": [outcome["usage"], other["usage"]]}
            else:
                result = {"error": (errors + ["no value"])[0]}
                print(f"{case['name']}, {case['bytes']} B: {result['error']}", file=sys.stderr, flush=True)
            with open(sys.argv[2], "a", encoding="utf-8") as results:
                results.write(json.dumps({**case, **result}) + "\n")


main()
