"""The style that all plots share, and their SVG text, which does not depend on the machine or on the time.

The plots need matplotlib. `scripts/setup --plots` installs it into build/python. No display is needed.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    print(
        f"matplotlib cannot be imported by {sys.executable} ({error}): `scripts/setup --plots` installs it into "
        "build/python; then run this program with build/python/bin/python",
        file=sys.stderr,
    )
    sys.exit(2)

FORMATS = (".svg", ".png", ".pdf")

# The colours of Okabe and Ito, which people with every type of colour blindness can distinguish. Their yellow is left
# out, because it is hard to see on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
PALE = "#5d6b73"  # for text and lines that are less important

# In letters: the width of the legend of a figure that is 9 inches wide, and that of the sample line before each label.
_LEGEND_WIDTH, _LEGEND_SIGN = 110, 8

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # labels come from files, and a $ in them is only a $
    "svg.fonttype": "none",  # text stays text, so that it can be searched and selected
    "svg.hashsalt": "tutti",  # without it, ids in the SVG text are random
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": PALE,
    "axes.edgecolor": PALE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e3e8eb",
    "xtick.color": PALE,
    "ytick.color": PALE,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure with the shared style. The style of the user's own matplotlib is not used."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(_STYLE)
    return Figure(figsize=(width_in, height_in), layout="constrained")


def series_style(index: int) -> dict[str, Any]:
    """Colour and line of series `index`. 28 series have different styles; after that they repeat."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": _LINES[index // len(COLOURS) % len(_LINES)],
    }


def series_marker(index: int) -> str:
    return _MARKERS[index % len(_MARKERS)]


def svg_text(figure: Figure) -> str:
    """The figure as SVG. The same figure always has the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    lines = (line.rstrip() for line in _number_ids(buffer.getvalue()).splitlines())
    return "\n".join(lines) + "\n"


def _number_ids(svg: str) -> str:
    """Replaces the ids that matplotlib computes from positions by numbers. It computes them from all bits, and the last
    bits of a layout differ from run to run."""
    for number, name in enumerate(dict.fromkeys(re.findall(r' id="(\w*[0-9a-f]{10})"', svg)), 1):
        svg = svg.replace(name, f"id{number}")
    return svg


def save(figure: Figure, path: Path) -> None:
    """Writes the figure in the format that the ending of the file's name selects. Raises OSError."""
    if path.suffix == ".svg":
        path.write_text(svg_text(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=150)


def printable(text: str, most: int) -> str:
    """The text on one line of at most `most` characters, without characters that XML forbids. Its middle is left out if
    it is longer, because two long labels often differ only at their ends."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(line) <= most:
        return line
    end = most // 3
    return line[: most - end - 2] + ".." + line[-end:]


def legend_rows(labels: Sequence[str]) -> tuple[int, int]:
    """The numbers of rows and columns of a legend below a plot, with as many columns as fit."""
    for columns in range(len(labels), 0, -1):
        rows = -(-len(labels) // columns)
        widths = [max(map(len, labels[i : i + rows])) + _LEGEND_SIGN for i in range(0, len(labels), rows)]
        if sum(widths) <= _LEGEND_WIDTH or columns == 1:
            return rows, len(widths)
    return 0, 1
