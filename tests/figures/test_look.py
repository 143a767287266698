"""Colours that are told apart in grey, by whoever does not see red or green, and on white paper."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont

from confide.base.arrays import Floats
from confide.experiments import equal_privacy as q
from confide.experiments.regression_figures import SHOWN_LOOKS
from confide.figures.look import LOOKS, STYLE, Look, shades, style

# Machado, Oliveira and Fernandes (2009), at full severity
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TOGETHER = {"figure 2": SHOWN_LOOKS, "all schemes": {name: way.look for name, way in q.WAYS.items()}}


def linear(colour: str) -> Floats:
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lightness(colour: str) -> float:
    """L* of CIELAB: 0 is black, 100 white."""
    Y = float(linear(colour) @ [0.2126, 0.7152, 0.0722])
    return 116 * np.cbrt(Y) - 16 if Y > 0.008856 else 903.3 * Y


def test_the_schemes_of_the_paper_differ_in_grey() -> None:
    levels = sorted(lightness(look.colour) for look in SHOWN_LOOKS.values())
    assert min(b - a for a, b in pairwise(levels)) > 15
    assert levels[-1] < 80  # none is lost on white


@pytest.mark.parametrize("kind", BLIND)
def test_the_schemes_of_the_paper_differ_without_red_or_green(kind: str) -> None:
    seen = [np.clip(np.array(BLIND[kind]) @ linear(look.colour), 0, 1) ** (1 / 2.2) for look in SHOWN_LOOKS.values()]
    assert min(float(np.abs(a - b).max()) for a, b in combinations(seen, 2)) > 0.15


@pytest.mark.parametrize("looks", TOGETHER.values(), ids=TOGETHER)
def test_marks_and_dashes_tell_them_apart_where_colours_do_not(looks: dict[str, Look]) -> None:
    marked = [(look.mark, look.dash) for look in looks.values()]
    assert len(set(marked)) == len(marked)


def test_a_scheme_looks_the_same_everywhere() -> None:
    assert SHOWN_LOOKS | LOOKS == SHOWN_LOOKS
    for name, look in LOOKS.items():
        assert q.WAYS[name].look.colour == look.colour
        assert q.WAYS[name].look.dash == look.dash


@pytest.mark.parametrize("n", [1, 4, 6])
def test_shades_run_from_dark_to_light_and_stay_visible(n: int) -> None:
    found = shades(n)
    levels = [lightness(look.colour) for look in found]
    assert all(b - a > 5 for a, b in pairwise(levels))
    assert levels[-1] < 76
    assert len({look.mark for look in found}) == n


def test_the_type_of_a_paper_is_at_hand() -> None:
    with style():
        text = Figure().text(0, 0, "round")
    assert text.get_fontfamily() == [STYLE["font.family"]]
    assert "STIX" in findfont(STYLE["font.family"], fallback_to_default=False)
