#!/usr/bin/env python3
"""named_tests.py ROOT [DOCUMENT...]: fails if a document names a test that does not exist.

A document names the tests of its promises in two forms:
  in text    (test: `Suite.Name`) or (tests: `Suite.Name`, `folder.name`); a star stands for any part of a name
  in tables  a last column with the heading `test` or `tests`; each row must name at least one test

The names are looked up in the sources below ROOT/tests. A build is not used, because it may lack programs for which
libraries are missing. Without DOCUMENT, docs/security.md and docs/reliability.md are checked. Exit status: 0 if all
names are correct; 1 if a name is wrong or missing, with a line for each; 2 if a document is missing or names no test.
"""

import fnmatch
import pathlib
import re
import sys

DOCUMENTS = ("docs/security.md", "docs/reliability.md")
IN_TEXT = re.compile(r"\(tests?:([^)]*)\)")
QUOTED = re.compile(r"`([^`]+)`")
GOOGLE_TEST = re.compile(r"^ *TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
WORD = re.compile(r"[\w.]+")
AGAIN = re.compile(r"\btutti_test_again\((\w+) (\w+) ")


class Tests:
    """The names of all tests in a tree: those of GoogleTest, and the text of the CMake lists for script tests."""

    def __init__(self, root):
        self.google = [f"{suite}.{name}" for path in sorted((root / "tests").rglob("*.cc"))
                       for suite, name in GOOGLE_TEST.findall(path.read_text())]
        self.lists = [re.sub(r"#.*", "", path.read_text()) for path in (root / "tests").rglob("CMakeLists.txt")]
        self.again = {f"{program}_{name}" for text in self.lists for program, name in AGAIN.findall(text)}

    def has(self, name):
        if fnmatch.filter(self.google, name):
            return True
        if name in self.again:
            return True
        # A script test can appear in a CMakeLists.txt with its whole name, or with both parts separately:
        # `script_tests([folder] script name...)` or `script.${each}`.
        script, _, rest = name.partition(".")
        pattern = rf"\((\w+ )?{script}\s|\b{script}\.\$"
        halves = re.compile(pattern) if script.isidentifier() and rest.strip("*") else None
        return any(fnmatch.filter(WORD.findall(text), name) or
                   (halves and halves.search(text) and fnmatch.filter(WORD.findall(text), rest)) for text in self.lists)


def names_in(text):
    """The tests that a document names, with line numbers, and the line numbers of table rows without a test."""
    named = [(text.count("\n", 0, place.start()) + 1, name)
             for place in IN_TEXT.finditer(text) for name in QUOTED.findall(place.group(1))]
    bare = []
    last_column = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            last_column = ""
            continue
        last = line.rstrip().rstrip("|").rsplit("|", 1)[-1].strip()
        if not last_column:
            last_column = last or "-"
        elif last_column in ("test", "tests") and set(last) != {"-"}:
            found = QUOTED.findall(last)
            named += [(number, name) for name in found]
            bare += [] if found else [number]
    return named, bare


def main(root, *documents):
    root = pathlib.Path(root)
    tests = Tests(root)
    wrong = 0
    for document in documents or DOCUMENTS:
        path = root / document
        named, bare = names_in(path.read_text()) if path.is_file() else ([], [])
        if not named:
            print(f"{document}: is missing, or names no test")
            return 2
        problems = [(line, "this row names no test") for line in bare]
        problems += [(line, f"there is no test {name}") for line, name in named if not tests.has(name)]
        for line, problem in sorted(problems):
            print(f"{document}:{line}: {problem}")
        wrong += len(problems)
        print(f"{document}: names {len({name for _, name in named})} tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else 2)
