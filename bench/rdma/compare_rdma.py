"""Tutti beside perftest and UCX over Soft-RoCE, in guests of scripts/rdma-vm. Started by scripts/compare-rdma.

Every program runs in each round, in turn, forwards and backwards. The tables have medians over the rounds, and of each
row its ratio to the row that it is measured by: the median of the rounds' own ratios, and their range; then what each
side's processes cost. TUTTI_* of the environment count, and UCX's own settings are the same for all.
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


def variant(text):
    label, colon, rest = text.partition(":")
    settings = dict(word.partition("=")[::2] for word in rest.split(",") if word)
    if not label or not colon or not all(settings.values()):
        raise argparse.ArgumentTypeError(f"'{text}' is not LABEL:[tool=PATH,][NAME=VALUE,...]")
    tool = settings.pop("tool", None)
    if tool is not None and not os.access(tool, os.X_OK):
        raise argparse.ArgumentTypeError(f"{tool} is no program")
    return {"label": label, "tool": tool and os.path.abspath(tool), "environment": settings}


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
    parser.add_argument("--variant", type=variant, action="append", metavar="LABEL:[tool=PATH,][NAME=VALUE,...]",
                        help="Tutti's rows once for each: by another tool, or with an environment; may be repeated")
    parser.add_argument("--call", action="append", help="of Tutti's rows only these (one_way, ...); may be repeated")
    parser.add_argument("--rival", action="append", help="of the others' rows only these programs; may be repeated")
    parser.add_argument("--output", help="the tables go to this file, too")
    options = parser.parse_args()
    options.transport = options.transport or ["tcp"]
    options.section = options.section or list(SECTIONS)
    options.variant = options.variant or [{"label": "", "tool": None, "environment": {}}]
    if options.cables and options.guests == 2:
        parser.error("two guests have a cable anyway: leave out --cables")
    return options


def rivals(section, busy_calls):
    """perftest's and UCX's programs of a section: kind, program, options, what the number is, iterations."""
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
    """Tutti's collectives of a section, and what the number is. A broadcast to one other rank is one way."""
    return {
        "one way": [("one_way", "one_way: send and receive"), ("ping_pong", "ping_pong: one way at a time"),
                    ("broadcast", "broadcast")],
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
    """Of each round that has both: to the best of those that it is measured by."""
    found = []
    for each, value in mine.items():
        yardstick = best([values[each] for values in theirs if each in values], unit)
        if yardstick:
            found.append(value / yardstick)
    return found


def table(options, measured, section):
    unit = SECTIONS[section][1]
    lengths = options.short if section == "short" else options.sizes
    lines = ["", "| median (its ratio, the range of the rounds') | " + " | ".join(f"{length} B" for length in lengths) +
             " | measured by |", "|---|" + "---|" * (len(lengths) + 1)]
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
        by_whom = " or ".join(each.split(":")[0] for each in by_names)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {by_whom} |")
    return lines


def costs(options, measured, section):
    """What the processes of each side cost: with their start, and without what the kernel does for nobody."""
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
    note = "less is better" if unit == "us" else "more is better"
    return (["", f"## {title}"] + table(options, measured, section) + costs(options, measured, section) +
            ["", f"Of {options.rounds} rounds; {note}; x: times the row that it is measured by in the same round, the "
             "best where there are two. Side 0 sends by Tutti, side 1 by the others."])


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
    if not os.access(options.tool, os.X_OK) and not all(each["tool"] for each in options.variant):
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
