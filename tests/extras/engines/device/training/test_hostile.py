"""What one client adds is within its bound, whatever its data: clipping alone is what every price rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from confide.engines.device.backend import Backend, backend
from confide.engines.device.training.cohort import Cohort, Train
from confide.engines.device.training.direct import direct
from confide.engines.device.training.gram import gram
from confide.engines.device.training.margins import Slopes, linear, logistic, margins
from confide.problems.networks.named import built_in
from confide.rounds.clipping import Clip

MU, B, SLACK = 0.1, 0.5, 1e-3  # of float32, in sums of up to a thousand products
F, H, C, S = 6, 5, 3, 4
SIZES = (F, H, C)


@pytest.fixture(params=["jax", "torch"])
def b(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param, "cpu", np.float32)


def hostile() -> Iterator[tuple[str, Any]]:
    """Rows of one client."""
    rng = np.random.default_rng(0)
    near = rng.normal(size=(1, F))
    yield "usual", rng.normal(size=(S, F))
    for size in (1e3, 1e6, 1e9, 1e15, 1e19, 1e25, 1e30, 1e37, 1e-15, 1e-25, 1e-39):
        yield f"{size:g}", size * rng.normal(size=(S, F))
        yield f"one of {size:g}", np.concatenate([size * near, rng.normal(size=(S - 1, F))])
        yield f"{size:g}, nearly alike", size * (near + 1e-4 * rng.normal(size=(S, F)))


def client(b: Backend, steps: int, weights: Any = None) -> Cohort:
    picks = np.tile(np.arange(S), (1, 1, steps, 1))
    share = np.full(picks.shape, 1.0 / S)
    given = (np.arange(S)[None, None], picks, share, np.full((1, 1), MU / steps), np.ones((1, 1)))
    one = np.ones((1, 1), np.int64)
    own = (one, 0 * one.astype(np.int32), S * one, steps * one, S * one)  # of a way of training that draws by itself
    whole = [np.asarray(x, np.int32) for x in given[:2]]
    return Cohort(*(b.to_device(x) for x in (*whole, *given[2:], *own)))


Program = Callable[[Any, Any, Any], Any]


def program(b: Backend, train: Train, limit: Clip, steps: int) -> Program:
    """(w, X, d) -> the update of a client that has these rows."""
    at = Clip(limit.kind, MU * limit.bound, limit.norm) if limit.kind == "update" else limit

    def trained(*of: Any) -> Any:
        with b.training():
            return train(*of, at)

    with b.exact():
        run, cohort = b.jit(trained), client(b, steps)

    def added(w: Any, X: Any, d: Any) -> Any:
        with b.exact(), np.errstate(all="ignore"):
            given = b.to_device(w[None]), b.to_device(X.astype(np.float32)), b.to_device(d)
            return b.to_numpy(run(*given, cohort)).astype(np.float64)[0]

    return added


def worst(added: Program, w: Any, labels: Any, limit: Clip, rho: float, steps: int) -> tuple[float, str]:
    """The largest share of its bound that an update had, beside what the regulariser takes, and of which rows."""
    found = []
    for name, X in hostile():
        for d in labels:
            update = added(w, X, d)
            if limit.kind == "example":
                update = update - ((1.0 - 2.0 * rho * MU / steps) ** steps - 1.0) * w
            size = float(np.abs(update).sum() if limit.norm == "l1" else np.linalg.norm(update)) / (MU * B)
            found.append((size if size < np.inf else np.inf, name))
    return max(found)


@pytest.mark.parametrize(("steps", "rho", "scale"), [(1, 0.0, 1.0), (3, 0.5, 1e3)])
@pytest.mark.parametrize("limit", [Clip("example", B), Clip("example", B, "l1"), Clip("update", B)], ids=str)
@pytest.mark.parametrize("way", ["Gram form", "direct"])
def test_a_perceptron(b: Backend, way: str, limit: Clip, rho: float, steps: int, scale: float) -> None:
    network = built_in("mlp", features=F, classes=C, hidden=(H,), framework=b.name, rho=rho)
    train = gram(b, SIZES, rho) if way == "Gram form" else direct(b, network.flat_loss(), rho)
    labels = [x.astype(np.int32 if b.name == "jax" else np.int64) for x in (np.arange(S) % C, np.zeros(S))]
    w = scale * np.random.default_rng(1).normal(size=network.dimension(F))
    size, rows = worst(program(b, train, limit, steps), w, labels, limit, rho, steps)
    assert size <= 1.0 + SLACK + 1e-6 * rho * scale * len(w) / B, rows  # w alone is rounded by that much


@pytest.mark.parametrize("steps", [1, 3])
def test_rows_that_cancel_in_the_gram_form(b: Backend, steps: int) -> None:
    """Two rows nearly alike with opposite gradients: their Gram matrix let updates of 44 times the bound through."""
    limit, rng = Clip("update", B), np.random.default_rng(0)
    added, found = program(b, gram(b, (F, 2, 2), 0.0), limit, steps), []
    d = np.array([0, 1, 0, 1], np.int32 if b.name == "jax" else np.int64)
    for _ in range(500):
        column, x = rng.normal(size=F), rng.normal(size=F)
        x *= 10.0 ** rng.uniform(0.0, 7.0) * np.sign(column @ x)
        near = x + 10.0 ** rng.uniform(-7.0, -2.0) * np.linalg.norm(x) * rng.normal(size=F)
        # Alike and opposite: both classes are as likely, and what comes down to the two hidden units is not 0.
        w = np.concatenate([np.zeros(2), np.repeat(column, 2), np.zeros(2), [1.0, -1.0, -1.0, 1.0]])
        found.append(np.linalg.norm(added(w, np.stack([x, near, x, near]), d)) / (MU * B))
    assert max(found) <= 1.0 + SLACK


@pytest.mark.parametrize("limit", [Clip("example", B), Clip("example", B, "l1"), Clip("update", B)], ids=str)
@pytest.mark.parametrize("slopes", [linear, logistic])
@pytest.mark.parametrize("way", ["closed form", "in registers"])
def test_a_model_of_margins(b: Backend, way: str, slopes: Slopes, limit: Clip) -> None:
    """A label may be as large as a feature is small: a gradient that is not, of a row whose square vanishes."""
    train = margins(b, slopes, 0.0)
    if way == "in registers":
        if b.name != "jax":
            pytest.skip("a kernel of JAX")
        from confide.engines.device.training.registers import registers

        train = registers(b, slopes, 0.0, interpret=True)
    added = program(b, train, limit, 3)
    for size in (1.0, 1e15, 1e30, 1e38) if slopes is linear else (1.0,):
        labels = [np.float32(size) * np.array([1, -1, 1, 1], np.float32)]
        found, rows = worst(added, np.random.default_rng(1).normal(size=F), labels, limit, 0.0, 3)
        assert found <= 1.0 + SLACK, (rows, size)
