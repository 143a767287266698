"""What the captions of the regression say alike."""

from __future__ import annotations

from confide.experiments.regression import Regression

SIGMA = "σ_g²"


def told(x: Regression) -> str:
    """Of marks, lines and bands of learning curves."""
    return (
        f"Marks: measured, means of {x.repeats} repetitions and of the rounds around each. Lines: the exact "
        f"prediction. Shaded: the 95% confidence band of a single round's mean. {drawn_once(x)}"
    )


def drawn_once(x: Regression) -> str:
    """Of what the bands do not cover."""
    return (
        f"One drawn problem and graph (seed {x.seed}, random:10:0.4, lazy Metropolis weights): the bands tell nothing "
        "of others."
    )
