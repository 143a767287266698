"""Whole rounds of the reference engine with networks: those of the same network by hand, draw for draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from confide.plans.build import model_of
from confide.privacy.price import START
from same_network import MAKERS, ByHand, C, F

UNITS, CLIENTS, ROWS = 3, 4, 9

frameworks = pytest.mark.parametrize("framework", sorted(MAKERS))


def problem(model: Any) -> confide.problems.Problem:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(UNITS, CLIENTS, ROWS, F))
    d = (X[..., :C].argmax(axis=-1)).astype(float)
    data = confide.Federation.from_clients([list(zip(*of, strict=True)) for of in zip(X, d, strict=True)])
    return confide.problems.Problem(data, model, test=(data.X, data.d), private=False)


def algorithm(**more: Any) -> confide.GFL:
    scheme = confide.scheme("homomorphic", sigma=0.01)
    return confide.GFL(**{"scheme": scheme, "step": 0.3, "sampled": 2, "local_steps": (1, 3), "batch": (2, 4), **more})


def run(model: Any, chosen: confide.GFL, rounds: int = 6) -> confide.Run:
    return confide.simulate(
        problem(model), confide.Graph.ring(UNITS), chosen, rounds=rounds, seed=3, engine="reference"
    )


@frameworks
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clip": confide.Clip("update", 0.5)},
        {"clip": confide.Clip("example", 0.4)},
        {"clip": confide.Clip("example", 0.4, "l1"), "replacement": False},
        {"clip": confide.Clip("example", 0.4), "arithmetic": "fixed"},
        {"clip": confide.Clip("update", 0.5), "dropout": 0.3},
    ],
    ids=lambda more: ", ".join(f"{k}={getattr(v, 'kind', v)}" for k, v in more.items()) or "plain",
)
def test_a_run_is_that_of_the_network_by_hand(framework: str, more: dict[str, Any]) -> None:
    network, by_hand = MAKERS[framework](rho=0.01), ByHand(0.01)
    by_hand.start = network.start
    found, expected = run(network, algorithm(**more)), run(by_hand, algorithm(**more))
    assert np.abs(expected.models - network.start()).max() > 0.02
    np.testing.assert_allclose(found.models, expected.models, atol=2e-5)
    for name in ("train_loss", "test_error", "disagreement"):
        np.testing.assert_allclose(found.metrics[name], expected.metrics[name], rtol=1e-3, atol=1e-6)


def test_the_frameworks_agree() -> None:
    """From the same weights, and with the same definition, they walk the same way."""
    one, other = MAKERS["jax"](), MAKERS["torch"]()
    other.start = one.start  # type: ignore[method-assign]
    np.testing.assert_allclose(run(one, algorithm()).models, run(other, algorithm()).models, atol=2e-5)


@frameworks
@pytest.mark.parametrize("kind", ["update", "example"])
def test_a_price_is_that_of_the_clip(framework: str, kind: str) -> None:
    """Nothing is known of a network: its statement is that of any model of one's own with the same rho."""
    privacy = confide.Privacy(level="unit", epsilon=2000.0)
    network, by_hand = MAKERS[framework](rho=0.01), ByHand(0.01)
    chosen = algorithm(clip=confide.Clip(kind, 0.5), scheme=confide.scheme("homomorphic", sigma=0.3))
    found, expected = (
        confide.simulate(problem(m), confide.Graph.ring(UNITS), chosen, rounds=3, privacy=privacy).privacy
        for m in (network, by_hand)
    )
    assert found is not None
    assert expected is not None
    for one, other in zip(found["statement"]["accounts"], expected["statement"]["accounts"], strict=True):
        assert {**one, "assumptions": None} == {**other, "assumptions": None}
        assert set(one["assumptions"]) == {*other["assumptions"], START}
    assert found["statement"]["accounts"][0]["epsilon"] > 0.0


def optimised(framework: str) -> Any:
    if framework == "jax":
        import optax

        return MAKERS[framework](optimizer=optax.adam(0.01))
    import torch

    return MAKERS[framework](optimizer=lambda params: torch.optim.Adam(params, lr=0.01))


def adam(model: ByHand, w: np.ndarray, X: np.ndarray, d: np.ndarray, task: Any) -> np.ndarray:
    """The same by hand, from a state of zeros."""
    from confide.base.randomness import below, words

    phi, first, second = w.copy(), np.zeros_like(w), np.zeros_like(w)
    for t, row in enumerate(words(task.key, task.E * task.batch).reshape(task.E, task.batch), 1):
        b = below(row, len(d))
        g = model.gradients(phi, X[b], d[b]).mean(axis=0) + 2 * model.rho * phi
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        phi -= 0.01 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return phi - w


@frameworks
def test_an_optimiser_is_the_local_step_and_begins_anew_each_round(framework: str) -> None:
    network, by_hand = optimised(framework), ByHand()
    by_hand.start = network.start
    chosen = algorithm(clip=confide.Clip("update", 0.2), local_steps=3)
    found = run(network, chosen)
    step = lambda w, X, d, task: adam(by_hand, w, X, d, task)  # noqa: E731
    expected = run(by_hand, replace(chosen, local=step))
    np.testing.assert_allclose(found.models, expected.models, atol=1e-3)
    assert np.abs(found.models - run(network, replace(chosen, clip=None)).models).max() > 1e-3  # the clip was felt
    assert found.inputs["algorithm"]["local"].endswith("Network.local")


@frameworks
def test_what_an_optimiser_does_not_allow(framework: str) -> None:
    network = optimised(framework)
    with pytest.raises(confide.InputError, match="clipped examples do not bound the step of an optimiser"):
        run(network, algorithm(clip=confide.Clip("example", 0.4)))
    with pytest.raises(confide.InputError, match="two local steps"):
        run(network, algorithm(local=lambda w, X, d, task: w))
    assert not model_of(problem(network), algorithm()).built_in
    assert model_of(problem(MAKERS[framework]()), algorithm()).built_in
