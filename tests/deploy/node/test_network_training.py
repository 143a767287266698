"""A client's network on its own data: no row decides over the others, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import DataError
from confide.deploy.node.network_training import Job, Trained
from numpy_network import NumpyNetwork
from same_network import F

ROWS, STEP, BOUND = 8, 0.5, 1.0
Made = Callable[..., Trained]


class Tokens(NumpyNetwork):
    """Raises where a feature is no index, as an embedding does."""

    def _gradients(self, w: Any, X: Any, d: Any) -> Any:
        if (np.abs(X) > 100.0).any():
            raise IndexError("index out of range in self")
        return super()._gradients(w, X, d)


class Overflowing(NumpyNetwork):
    """Whose loss is not finite far away."""

    def _losses(self, w: Any, X: Any, d: Any) -> Any:
        return np.where((np.abs(X) > 100.0).any(axis=1), np.nan, super()._losses(w, X, d))

    def _batch(self, w: Any, X: Any, d: Any) -> Any:
        return np.float64(np.mean(self._losses(w, X, d)))

    def _gradients(self, w: Any, X: Any, d: Any) -> Any:
        return np.where((np.abs(X) > 100.0).any(axis=1)[:, None], np.inf, super()._gradients(w, X, d))


def rows() -> tuple[Any, Any]:
    """All alike, so that all gradients point the same way."""
    return np.full((ROWS, F), 3.0), np.zeros(ROWS)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(network: NumpyNetwork, X: Any, d: Any, kind: str = "example") -> Trained:
        np.savez(tmp_path / "data.npz", X=X, y=d)
        M = network.dimension(F)
        data, clip = str(tmp_path / "data.npz"), (kind, BOUND, "l2")
        return Trained("mine:network", network, Job(data, None, M, network.rho, "", STEP, 1, ROWS, False, clip))

    return make


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("place", [0, ROWS - 1])
@pytest.mark.parametrize("network", [NumpyNetwork(), Overflowing(), Tokens()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("value", [1e3, 1e60, 1e200, np.nan])
def test_one_row_moves_its_part_of_an_update(made: Made, network: NumpyNetwork, place: int, value: float) -> None:
    """Which is what level `example` promises: 2 mu B / n, for the other rows are the same."""
    X, d = rows()
    other = X.copy()
    other[place] = value
    w = network.start()
    u, v = (made(network, each, d)(w, 1, {"key": 7}) for each in (X, other))
    assert np.linalg.norm(u) == pytest.approx(STEP * BOUND)
    assert np.linalg.norm(u - v) <= 2.0 * STEP * BOUND / ROWS * (1.0 + 1e-9)


def test_rows_that_do_not_fit_the_network_fail_as_a_whole(made: Made) -> None:
    """Their shape is no row's."""
    X, d = rows()
    with pytest.raises(DataError, match="raised on a batch"):
        made(NumpyNetwork(), np.hstack([X, X]), d)
