"""How pictures look: sized for a paper's column, in its type, and told apart by the colour-blind and in grey.

A scheme has one look: its colour, as dark as no other's beside it, its dashes and its mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from matplotlib import rc_context

COLUMN, PAGE = 3.5, 7.16  # inches: the width of a paper's column, and of its two

STYLE: dict[Any, Any] = {
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,  # every figure says so itself
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.2,
    "pdf.fonttype": 42,  # whole letters: publishers refuse type 3
    "svg.hashsalt": "confide",  # the same names inside, so the same bytes
}


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings while something of ours is drawn or saved; outside they are the user's."""
    with rc_context(STYLE):
        yield


class Look(NamedTuple):
    """Of one curve."""

    colour: str
    dash: Any = "-"  # as matplotlib has it
    mark: str = ""


# The paper's colours: no perturbations blue, homomorphic green, random red.
LOOKS = {
    "none": Look("#0b2f6b", "-", "o"),
    "homomorphic": Look("#249b5e", (0, (4.0, 1.6)), "s"),
    "per-link": Look("#b22027", (0, (1.4, 1.0)), "^"),
}
MARKS = ("o", "s", "^", "D", "v", ">")
# Each leaves gaps in which those before it show.
DASHES = ("-", (0, (7.0, 1.2)), (0, (4.5, 1.5)), (0, (4.0, 1.0, 1.0, 1.0)), (0, (2.5, 1.2)), (0, (1.2, 1.0)))


def shades(n: int) -> list[Look]:
    """Of up to six values in a row, from dark to light: never so light that it is lost on white."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    colours = colormaps["viridis"]([0.74 * i / max(n - 1, 1) for i in range(n)])
    parts = zip(colours, DASHES[:n], MARKS[:n], strict=True)
    return [Look(to_hex(colour), dash, mark) for colour, dash, mark in parts]
