"""Compares Tutti with perftest and UCX over Soft-RoCE, in guests of scripts/rdma-vm. scripts/compare-rdma starts it.

All programs run one after the other in each round; every second round has the reverse order. The tables have the
medians over the rounds. Each row of Tutti also has its ratio to a reference row: the median of the ratios of the
rounds, and their range. A second table has the processor time of each side. TUTTI_* variables of the environment are
passed to Tutti. Tutti's transport ucx and ucx_perftest have the same UCX settings, except that ucx_perftest also gets
UCX_RNDV_SCHEME=put_zcopy.
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
        raise argparse.ArgumentTypeError(f"'{text}' is not a size from 8 to 256M")
    return int(digits) * factor


def sizes(text):
    return [size(word) for word in text.split(",")]


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def variant(text):
    label, colon, rest = text.partition(":")
    settings = dict(word.partition("=")[::2] for word in rest.split(",") if word)
    if not label or not colon or not all(settings.values()):
        raise argparse.ArgumentTypeError(f"'{text}' is not LABEL:[tool=PATH,][NAME=VALUE,...]")
    tool = settings.pop("tool", None)
    if tool is not None and not os.access(tool, os.X_OK):
        raise argparse.ArgumentTypeError(f"{tool} is not an executable program")
    return {"label": label, "tool": tool and os.path.abspath(tool), "environment": settings}


def parse():
    parser = argparse.ArgumentParser(prog="scripts/compare-rdma", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guests", type=int, choices=(1, 2), default=1, help="both sides in one guest, or in two")
    parser.add_argument("--cables", action="store_true", help="one guest: through a veth pair, not inside the driver")
    parser.add_argument("--transport", action="append", help="Tutti's transport; may be repeated (tcp)")
    parser.add_argument("--memory", choices=("plain", "registered"), default="registered", help="Tutti's buffers")
    parser.add_argument("--section", action="append", choices=tuple(SECTIONS), help="only this one; may be repeated")
    parser.add_argument("--sizes", type=sizes, default=sizes("64K,1M"), help="sizes of long messages (64K,1M)")
    parser.add_argument("--short", type=sizes, default=sizes("8"), help="sizes of short messages (8)")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--bytes", type=size, default=size("16M"), help="bytes that a long measurement moves (16M)")
    parser.add_argument("--calls", type=positive, default=200, help="calls of a short measurement (200)")
    parser.add_argument("--mtu", type=positive, default=1500)
    parser.add_argument("--time", type=positive, default=3000, help="time limit of the whole run in s (3000)")
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/release/bin/tutti"), help="the tutti command")
    parser.add_argument("--variant", type=variant, action="append", metavar="LABEL:[tool=PATH,][NAME=VALUE,...]",
                        help="measure Tutti's rows with another tool or environment, too; may be repeated")
    parser.add_argument("--call", action="append", help="only this row of Tutti (one_way, ...); may be repeated")
    parser.add_argument("--rival", action="append", help="only this program of the others; may be repeated")
    parser.add_argument("--output", help="also write the tables to this file")
    options = parser.parse_args()
    options.transport = options.transport or ["tcp"]
    options.section = options.section or list(SECTIONS)
    options.variant = options.variant or [{"label": "", "tool": None, "environment": {}}]
    if options.cables and options.guests == 2:
        parser.error("--cables is for one guest: two guests are always connected by a cable")
    return options


def rivals(section, busy_calls):
    """The programs of perftest and UCX in a section: type, program, options, description of the result, iterations
    (None: as many as the calls of Tutti)."""
    return {
        "one way": [
            ("perftest", "ib_write_bw", ["--perform_warm_up"], "ib_write_bw: RDMA writes", None),
            ("perftest", "ib_send_bw", ["-e"], "ib_send_bw -e: sends, sleeps for events", None),
            ("perftest", "ib_read_bw", ["--perform_warm_up"], "ib_read_bw: RDMA reads", None),
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
    """The calls of Tutti in a section, with a description of the result. A broadcast to one other rank moves data in
    one direction."""
    return {
        "one way": [("one_way", "one_way: send and receive"), ("ping_pong", "ping_pong: one way at a time"),
                    ("broadcast", "broadcast")],
        "both ways": [("send_recv", "send_recv"), ("all_reduce", "all_reduce (sends and receives its size once)")],
        "short": [("ping_pong", "ping_pong: half round trip"), ("all_reduce", "all_reduce: both ways at once")],
    }[section]


def yardsticks(section, transport):
    """The reference programs for a transport's row; the best of them counts. Busy polling is the fastest if each side
    has a processor. If both sides share the processor of a guest, they take turns of milliseconds, and sleeping is
    faster. ucx_perftest cannot measure both directions at once."""
    if section != "short":
        return ["ucp_put_bw" if transport == "ucx" and section == "one way" else "ib_write_bw"]
    return ["ucp_put_lat", "tag_lat"] if transport == "ucx" else ["ib_write_lat", "ib_send_lat"]


def own_rows(options, section):
    """Transport, call, variant and name of each of Tutti's rows."""
    return [(transport, call, each, f"tutti {transport}, {name}" + (each["label"] and f" [{each['label']}]"))
            for transport in options.transport for call, name in own(section)
            if not options.call or call in options.call for each in options.variant]


def rival_rows(options, section):
    return [row for row in rivals(section, max(5, options.calls // 4)) if not options.rival or row[1] in options.rival]


def cases_of(options):
    cases = []
    for section in options.section:
        unit = SECTIONS[section][1]
        for length in options.short if section == "short" else options.sizes:
            calls = options.calls if section == "short" else max(8, options.bytes // length)
            common = {"section": section, "unit": unit, "bytes": length,
                      "warm_up": max(2, min(20, calls // 10))}
            for kind, program, words, name, iterations in rival_rows(options, section):
                cases.append({**common, "kind": kind, "program": program, "options": words, "name": name,
                              "iterations": iterations or calls})
            for transport, call, each, name in own_rows(options, section):
                cases.append({**common, "kind": "tutti", "program": call, "transport": transport, "name": name,
                              "memory": options.memory, "tool": each["tool"] or options.tool,
                              "environment": each["environment"], "iterations": calls})
    return cases


def own_settings():
    return sorted(name for name in os.environ if name.startswith("TUTTI_"))


def measure(options, folder):
    cases = cases_of(options)
    ordered = []
    for each in range(options.rounds):
        ordered += [{**case, "round": each} for case in (cases if each % 2 == 0 else reversed(cases))]
    plan, results = os.path.join(folder, "plan.json"), os.path.join(folder, "results.jsonl")
    with open(plan, "w", encoding="utf-8") as file:
        json.dump(ordered, file)
    words = [os.path.join(ROOT, "scripts/rdma-vm"), "run", "--guests", str(options.guests),
             "--ranks", str(3 - options.guests), "--mtu", str(options.mtu), "--time", str(options.time),
             "--memory", "1500", "--share", folder]
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


def by_round(measured, section, name, length, field="value"):
    return {each["round"]: each[field] for each in measured if field in each and
            (each["section"], each["name"], each["bytes"]) == (section, name, length)}


def best(values, unit):
    return None if not values else min(values) if unit == "us" else max(values)


def shown(value):
    return "-" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def middle(values):
    return statistics.median(values) if values else None


def ratios(mine, theirs, unit):
    """The ratio to the best of the reference rows, for each round that has both."""
    found = []
    for each, value in mine.items():
        yardstick = best([values[each] for values in theirs if each in values], unit)
        if yardstick:
            found.append(value / yardstick)
    return found


def table(options, measured, section):
    unit = SECTIONS[section][1]
    lengths = options.short if section == "short" else options.sizes
    lines = ["", "| median (ratio, range over the rounds) | " + " | ".join(f"{length} B" for length in lengths) +
             " | reference |", "|---|" + "---|" * (len(lengths) + 1)]
    for _, _, _, name, _ in rival_rows(options, section):
        cells = [shown(middle(list(by_round(measured, section, name, length).values()))) for length in lengths]
        lines.append(f"| {name} | " + " | ".join(cells) + " | |")
    for transport, _, _, name in own_rows(options, section):
        by = yardsticks(section, transport)
        by_names = [rival for _, program, _, rival, _ in rivals(section, 0) if program in by]
        cells = []
        for length in lengths:
            mine = by_round(measured, section, name, length)
            found = ratios(mine, [by_round(measured, section, each, length) for each in by_names], unit)
            text = f" ({middle(found):.2f} x, {min(found):.2f} to {max(found):.2f})" if found else ""
            cells.append(shown(middle(list(mine.values()))) + text)
        references = " or ".join(each.split(":")[0] for each in by_names)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {references} |")
    return lines


def costs(options, measured, section):
    """A table of the processor time and context switches of each side's processes. They include the start of the
    processes, but not the time of the kernel that is not assigned to a process."""
    lengths = options.short if section == "short" else options.sizes
    lines = ["", "| medians: CPU s, user + system, of side 0 and 1; context switches | " +
             " | ".join(f"{length} B" for length in lengths) + " |", "|---|" + "---|" * len(lengths)]
    names = [row[3] for row in rival_rows(options, section)] + [row[3] for row in own_rows(options, section)]
    for name in names:
        cells = []
        for length in lengths:
            usages = list(by_round(measured, section, name, length, "usage").values())
            sides = []
            for side in (0, 1):
                user, system, willing, forced = (middle([usage[side][i] for usage in usages]) or 0 for i in range(4))
                sides.append(f"{user:.2f} + {system:.2f}, {willing + forced:.0f}")
            cells.append("; ".join(sides) if usages else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def tables(options, measured, section):
    title, unit = SECTIONS[section]
    note = "lower is better" if unit == "us" else "higher is better"
    return (["", f"## {title}"] + table(options, measured, section) + costs(options, measured, section) +
            ["", f"{options.rounds} rounds; {note}; x is the ratio to the reference row in the same round, or to the "
             "better one of two. With Tutti side 0 sends, with the others side 1."])


def report(options, measured):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                            check=False).stdout.strip()
    where = "two guests" if options.guests == 2 else "one guest, over a veth cable" if options.cables else "one guest"
    lines = [f"# {datetime.date.today()}: Tutti, perftest and UCX over Soft-RoCE, {where}", "",
             f"`{''.join(f'{name}={os.environ[name]} ' for name in own_settings())}"
             f"scripts/compare-rdma {' '.join(sys.argv[1:])}` at commit {commit}; MTU {options.mtu}, "
             f"{options.memory} memory, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end. The "
             "processor is emulated, so only the ratios are meaningful."]
    for section in options.section:
        lines += tables(options, measured, section)
    failures = sorted({f"{each['name']}, {each['bytes']} B: {each['error'].strip()}" for each in measured
                       if "error" in each})
    if failures:
        lines += ["", "Failed:", ""] + ["- " + " ".join(failure.split()) for failure in failures]
    return "\n".join(lines) + "\n", bool(failures)


def main():
    options = parse()
    if not os.access(options.tool, os.X_OK) and not all(each["tool"] for each in options.variant):
        sys.exit(f"compare-rdma: there is no {options.tool}: build it with scripts/build release tutti_tool")
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
