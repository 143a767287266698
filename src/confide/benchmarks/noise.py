"""`confide bench noise`: samples of the discrete laws beside NumPy's floating-point ones, rounded, in one run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from confide.base.validation import whole
from confide.benchmarks.timing import all_told, turns
from confide.laws.noise import discrete_gaussian, discrete_laplace
from confide.laws.secret_stream import SecretStream

EXPONENTS: Final = (0, 10, 20, 30, 40)  # of the scales, in quanta: each die more is a word more for every sample


def bench(samples: int = 500_000, tries: int = 40, watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Samples a second of both laws at every scale, and how many times as long as NumPy each takes."""
    whole("samples", samples, 1, 10**8)
    whole("tries", tries, 1, 1000)
    stream, rng = SecretStream(), np.random.default_rng(0)
    ours = {"laplace": discrete_laplace, "gaussian": discrete_gaussian}
    floor = {"laplace": rng.laplace, "gaussian": rng.normal}
    works: dict[tuple[str, str, int], Callable[[], object]] = {}
    for law, exponent in itertools.product(ours, EXPONENTS):
        ours[law](stream, 2.0**exponent, 1)  # builds the tables
        works["ours", law, exponent] = partial(ours[law], stream, 2.0**exponent, samples)
        works["floor", law, exponent] = partial(_rounded, floor[law], 2.0**exponent, samples)
    took = turns(works, tries, watch)
    rates: dict[str, float] = {}
    ratios: dict[str, list[float]] = {}
    for law, exponent in itertools.product(ours, EXPONENTS):
        at, pair = f"{law}_2^{exponent}", [(whose, law, exponent) for whose in ("ours", "floor")]
        seconds, bare = map(took.median, pair)
        rates |= {f"{at}_per_s": samples / seconds, f"floor_{at}_per_s": samples / bare}
        ratios[f"{at}_ratio"] = took.ratios(*pair)
    ratios["worst_ratio"] = max(ratios.values(), key=statistics.median)
    return {"samples": samples, **rates, **all_told(ratios)}


def _rounded(draw: Callable[..., NDArray[np.float64]], scale: float, samples: int) -> NDArray[np.int64]:
    return np.rint(draw(0.0, scale, samples)).astype(np.int64)
