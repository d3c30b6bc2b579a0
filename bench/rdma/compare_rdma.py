"""Tutti beside perftest and UCX over Soft-RoCE, in guests of scripts/rdma-vm. Started by scripts/compare-rdma.

Every program runs in each round, in turn, forwards and backwards; the tables have medians over the rounds, and of each
row its ratio to the row that it is measured by; then the best of the rounds, likewise. TUTTI_* of the environment count.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# section: (title, unit)
SECTIONS = {
    "one way": ("One way, MB/s (1e6 bytes)", "MB/s"),
    "both ways": ("Both ways at once, MB/s each way", "MB/s"),
    "short": ("Short messages, us", "us"),
}


def size(text):
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdigit() or not 8 <= int(digits) * factor <= 1 << 28:
        raise argparse.ArgumentTypeError(f"'{text}' is no size from 8 to 256M")
    return int(digits) * factor


def sizes(text):
    return [size(word) for word in text.split(",")]


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no positive number")
    return int(text)


def parse():
    parser = argparse.ArgumentParser(prog="scripts/compare-rdma", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guests", type=int, choices=(1, 2), default=1, help="both sides in one, or two hosts")
    parser.add_argument("--cables", action="store_true", help="one guest: over a veth cable, not inside of the driver")
    parser.add_argument("--transport", action="append", help="of Tutti's, may be repeated (default: tcp)")
    parser.add_argument("--memory", choices=("plain", "registered"), default="registered", help="of Tutti's buffers")
    parser.add_argument("--section", action="append", choices=tuple(SECTIONS), help="only this one; may be repeated")
    parser.add_argument("--sizes", type=sizes, default=sizes("64K,1M"), help="of long messages (default: 64K,1M)")
    parser.add_argument("--short", type=sizes, default=sizes("8"), help="of short messages (default: 8)")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--bytes", type=size, default=size("16M"), help="that a long measurement moves (default: 16M)")
    parser.add_argument("--calls", type=positive, default=200, help="of a short measurement (default: 200)")
    parser.add_argument("--mtu", type=positive, default=1500)
    parser.add_argument("--time", type=positive, default=3000, help="limit of the whole in s (default: 3000)")
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/release/bin/tutti"), help="the tutti command")
    parser.add_argument("--output", help="the tables go to this file, too")
    options = parser.parse_args()
    options.transport = options.transport or ["tcp"]
    options.section = options.section or list(SECTIONS)
    if options.cables and options.guests == 2:
        parser.error("two guests have a cable anyway: leave out --cables")
    return options


def rivals(section, busy_calls):
    """perftest's and UCX's programs of a section: kind, program, options, what the number is, iterations."""
    return {
        "one way": [
            ("perftest", "ib_write_bw", [], "ib_write_bw: RDMA writes", None),
            ("perftest", "ib_read_bw", [], "ib_read_bw: RDMA reads", None),
            ("ucx", "ucp_put_bw", [], "ucx_perftest ucp_put_bw: its target at nice 19", None),
            ("ucx", "tag_bw", [], "ucx_perftest tag_bw: sleeps for events", None),
        ],
        "both ways": [
            ("perftest", "ib_write_bw", ["-b"], "ib_write_bw -b: half of its sum", None),
        ],
        "short": [
            ("perftest", "ib_write_lat", [], "ib_write_lat: half round trip, busy polling", busy_calls),
            ("perftest", "ib_send_lat", ["-e"], "ib_send_lat -e: half round trip, sleeps for events", None),
            ("ucx", "ucp_put_lat", [], "ucx_perftest ucp_put_lat: half round trip, busy polling", busy_calls),
            ("ucx", "tag_lat", [], "ucx_perftest tag_lat: half round trip, sleeps for events", None),
        ],
    }[section]


def own(section):
    """Tutti's collectives of a section, and what the number is. A broadcast to one other rank is one way."""
    return {
        "one way": [("broadcast", "broadcast"), ("ping_pong", "ping_pong: one way at a time")],
        "both ways": [("send_recv", "send_recv"), ("all_reduce", "all_reduce (sends and receives its size once)")],
        "short": [("ping_pong", "ping_pong: half round trip"), ("all_reduce", "all_reduce: both ways at once")],
    }[section]


def yardsticks(section, transport):
    """The programs by which a transport's row is measured: the best of them counts. Busy polling is the quickest where
    each side has a processor; on the one of a guest it takes turns of milliseconds, and sleeping is quicker. For both
    ways ucx_perftest has nothing."""
    if section != "short":
        return ["ucp_put_bw" if transport == "ucx" and section == "one way" else "ib_write_bw"]
    return ["ucp_put_lat", "tag_lat"] if transport == "ucx" else ["ib_write_lat", "ib_send_lat"]


def cases_of(options):
    cases = []
    for section in options.section:
        unit = SECTIONS[section][1]
        for length in options.short if section == "short" else options.sizes:
            calls = options.calls if section == "short" else max(8, options.bytes // length)
            common = {"section": section, "unit": unit, "bytes": length,
                      "warm_up": max(2, min(20, calls // 10))}
            for kind, program, words, name, iterations in rivals(section, max(5, options.calls // 4)):
                cases.append({**common, "kind": kind, "program": program, "options": words, "name": name,
                              "iterations": iterations or calls})
            for transport in options.transport:
                for collective, name in own(section):
                    cases.append({**common, "kind": "tutti", "program": collective, "transport": transport,
                                  "name": f"tutti {transport}, {name}", "memory": options.memory, "tool": options.tool,
                                  "iterations": calls})
    return cases


def own_settings():
    return sorted(name for name in os.environ if name.startswith("TUTTI_"))


def measure(options, folder):
    cases = cases_of(options)
    ordered = []
    for each in range(options.rounds):
        ordered += cases if each % 2 == 0 else list(reversed(cases))
    plan, results = os.path.join(folder, "plan.json"), os.path.join(folder, "results.jsonl")
    with open(plan, "w", encoding="utf-8") as file:
        json.dump(ordered, file)
    words = [os.path.join(ROOT, "scripts/rdma-vm"), "run", "--guests", str(options.guests),
             "--ranks", str(3 - options.guests), "--mtu", str(options.mtu), "--time", str(options.time),
             "--share", folder]
    if options.cables:
        words += ["--cables", "1"]
    for name in own_settings():
        words += ["--env", name]
    side = os.path.join(ROOT, "bench/rdma/side.py")
    status = subprocess.run(words + ["--", sys.executable, side, plan, results], check=False).returncode
    measured = []
    if os.path.exists(results):
        with open(results, encoding="utf-8") as file:
            measured = [json.loads(line) for line in file]
    if status != 0:
        print(f"compare-rdma: the run ended with status {status} after {len(measured)} of {len(ordered)} "
              "measurements", file=sys.stderr)
    return status, measured


def values_of(measured, section, name, length):
    return [each["value"] for each in measured if "value" in each and
            (each["section"], each["name"], each["bytes"]) == (section, name, length)]


def best(values, unit):
    return None if not values else min(values) if unit == "us" else max(values)


def shown(value):
    return "-" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def table(options, measured, section, summary, what):
    """The rows of a section; summary makes one number of a row's values over the rounds, what says which."""
    unit = SECTIONS[section][1]
    lengths = options.short if section == "short" else options.sizes

    def value(name, length):
        values = values_of(measured, section, name, length)
        return summary(values) if values else None

    lines = ["", f"| {what} | " + " | ".join(f"{length} B" for length in lengths) + " | measured by |",
             "|---|" + "---|" * (len(lengths) + 1)]
    names = [name for _, _, _, name, _ in rivals(section, 0)]
    lines += [f"| {name} | " + " | ".join(shown(value(name, length)) for length in lengths) + " | |" for name in names]
    for transport in options.transport:
        by = yardsticks(section, transport)
        by_names = [name for _, program, _, name, _ in rivals(section, 0) if program in by]
        for _, name in own(section):
            name = f"tutti {transport}, {name}"
            cells = []
            for length in lengths:
                mine, *theirs = (value(each, length) for each in [name] + by_names)
                theirs = best([value for value in theirs if value], unit)
                ratio = f" ({mine / theirs:.2f} x)" if mine and theirs else ""
                cells.append(shown(mine) + ratio)
            by_whom = " or ".join(each.split(":")[0] for each in by_names)
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {by_whom} |")
    return lines


def tables(options, measured, section):
    title, unit = SECTIONS[section]
    note = "less is better" if unit == "us" else "more is better"
    lines = ["", f"## {title}"] + table(options, measured, section, statistics.median, "median")
    if options.rounds > 1:
        lines += table(options, measured, section, lambda values: best(values, unit), "best")
    return lines + ["", f"Of {options.rounds} rounds; {note}; x: times the row that it is measured by, "
                    "the best where there are two."]


def report(options, measured):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                            check=False).stdout.strip()
    where = "two guests" if options.guests == 2 else "one guest, over a veth cable" if options.cables else "one guest"
    lines = [f"# {datetime.date.today()}: Tutti beside perftest and UCX over Soft-RoCE, {where}", "",
             f"`{''.join(f'{name}={os.environ[name]} ' for name in own_settings())}"
             f"scripts/compare-rdma {' '.join(sys.argv[1:])}` at commit {commit}; MTU {options.mtu}, "
             f"{options.memory} memory, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end. An emulated "
             "processor's speeds: only ratios mean something."]
    for section in options.section:
        lines += tables(options, measured, section)
    failures = sorted({f"{each['name']}, {each['bytes']} B: {each['error'].strip()}" for each in measured
                       if "error" in each})
    if failures:
        lines += ["", "Failed:", ""] + ["- " + " ".join(failure.split()) for failure in failures]
    return "\n".join(lines) + "\n", bool(failures)


def main():
    options = parse()
    if not os.access(options.tool, os.X_OK):
        sys.exit(f"compare-rdma: {options.tool} is not there: scripts/build release tutti_tool")
    options.tool = os.path.abspath(options.tool)
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compare-rdma.", dir=os.path.join(ROOT, "build")) as folder:
        status, measured = measure(options, folder)
    if not measured:
        sys.exit(status or 1)
    text, failed = report(options, measured)
    print(text, end="")
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)
    sys.exit(status or int(failed))


main()
