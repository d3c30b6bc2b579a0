"""Reads the skipped tests from the files that `ctest --output-junit` writes."""

import re
import xml.etree.ElementTree

CUT_OFF = "This part of the test output was removed since it exceeds the threshold"
# The reports of sanitizers. The name of a sanitizer alone is no report: the reason of a skip may contain it.
TROUBLE = re.compile(
    r"\[  FAILED  \]|(Address|Leak|Thread|UndefinedBehavior)Sanitizer(:| CHECK failed| failed to| has encountered)"
    r"|runtime error:"
)


class Unreadable(Exception):
    """A file cannot be read, or has another format."""


def clean(name):
    """The name without the value of the parameter, which GoogleTest appends, and which differs from run to run."""
    return re.split(r"\s+# GetParam\(\)|, where (?:TypeParam|GetParam\(\)) = ", name)[0].strip()


def inner_skips(output):
    """(name, reason) of each test that was skipped inside a test."""
    found = {}
    for line in output.splitlines():
        ours = re.search(r"inner skip: (.+?): (.*)", line)
        theirs = re.search(r"\[  SKIPPED \] (.+?)(?: \(\d+ ms\))?$", line)
        if ours:
            found[ours.group(1)] = ours.group(2)
        elif theirs and not re.match(r"\d+ tests?, listed below", theirs.group(1)):
            found.setdefault(clean(theirs.group(1)), "see the test's output")
    return found.items()


def reason_in(output):
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("[")]
    marked = [following for line, following in zip(lines, lines[1:]) if line.endswith(": Skipped")]
    return (marked or lines or ["no output"])[-1][:160]


def skips_of(path):
    """(name, reason, trouble) of each skipped test in one file of results.

    `trouble` is the reason if the test must not count as skipped. ctest reports a program as skipped if it prints
    `[  SKIPPED ]`, even if it fails afterwards, for example because a sanitizer finds a leak when it exits.
    """
    try:
        cases = xml.etree.ElementTree.parse(path).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        raise Unreadable(f"{path}: {error}") from error
    for case in cases:
        name, output = clean(case.get("name")), case.findtext("system-out") or ""
        if CUT_OFF in output and case.get("status") != "fail":
            raise Unreadable(f"{path}: ctest cut the output of {name}: it needs --test-output-size-passed 100000000")
        if case.get("status") == "disabled":
            yield name, "disabled", ""
        elif case.find("skipped") is not None:
            trouble = TROUBLE.search(output)
            yield name, reason_in(output), f"it failed, too: {trouble.group(0)}" if trouble else ""
        else:
            for inner, reason in inner_skips(output):
                yield f"{name}::{inner}", reason, ""
