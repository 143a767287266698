"""What GFL and Failures accept, and what settling on a federation means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

Maker = Callable[..., Problem]


def test_the_defaults_are_figure_a() -> None:
    a = GFL()
    assert (a.step, a.sampled, a.local_steps, a.batch) == (0.7, 11, (1, 10), (5, 10))
    assert a.scheme.name == "homomorphic"
    assert a.scheme.sigma**2 == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"step": 0.0}, "algorithm.step"),
        ({"step": float("inf")}, "algorithm.step"),
        ({"sampled": 0}, "algorithm.sampled"),
        ({"sampled": 2.0}, "algorithm.sampled"),
        ({"local_steps": 0}, "algorithm.local_steps"),
        ({"local_steps": True}, "algorithm.local_steps"),
        ({"local_steps": (3, 2)}, "algorithm.local_steps"),
        ({"local_steps": (1, 2, 3)}, "algorithm.local_steps"),
        ({"local_steps": [1.5, 2.0]}, "algorithm.local_steps"),
        ({"batch": [1, 0]}, "algorithm.batch"),
        ({"batch": []}, "algorithm.batch"),
        ({"batch": "5"}, "algorithm.batch"),
        ({"dropout": 1.5}, "algorithm.dropout"),
        ({"replacement": 1}, "algorithm.replacement"),
        ({"arithmetic": "double"}, "algorithm.arithmetic"),
        ({"arithmetic": "fixed"}, "algorithm.arithmetic"),  # without a clip no range can be proved
        ({"fraction_bits": 0}, "algorithm.fraction_bits"),
        ({"fraction_bits": 53}, "algorithm.fraction_bits"),
        ({"local": lambda w, X, d, task: 0 * w, "clip": Clip("example", 1.0)}, "algorithm.clip"),
        ({"scheme": scheme("central", 0.1), "failures": Failures(link=0.1)}, "failures"),
        (
            {"scheme": scheme("central", 0.1), "arithmetic": "fixed", "clip": Clip("update", 1.0)},
            "algorithm.arithmetic",
        ),
        (
            {
                "scheme": scheme("per-link", 0.1, sigma_client=0.1),
                "arithmetic": "fixed",
                "clip": Clip("update", 1.0),
            },
            "scheme.sigma_client",
        ),
    ],
)
def test_what_gfl_refuses(settings: dict, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        GFL(**settings)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"link": 1.1}, "failures.link"),
        ({"unit": -0.1}, "failures.unit"),
        ({"links": ((1, 2),)}, "failures.links"),
        ({"links": ((0, 1, 2),)}, "failures.links"),
        ({"units": ((1, -1),)}, "failures.units"),
        ({"units": ((1, 0.5),)}, "failures.units"),
    ],
)
def test_what_failures_refuse(settings: dict, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        Failures(**settings)
    assert refusal.value.field == field


def test_failures_are_falsy_only_when_nothing_fails() -> None:
    assert not Failures()
    assert all([Failures(link=0.1), Failures(unit=0.1), Failures(links=((1, 0, 1),)), Failures(units=((1, 0),))])
    assert Failures(links=[[1, 0, 1]]).links == ((1, 0, 1),)


# ---- settle


@pytest.mark.parametrize("setting", [3, np.int64(3), [3] * 18, np.full(18, 3), (3, 3)], ids=repr)
def test_every_way_to_say_three(ragged: Maker, setting: object) -> None:
    f = ragged().federation
    assert f.clients == 18
    E, batch = GFL(sampled=2, local_steps=setting, batch=setting).settle(f, 0)
    assert E.dtype == batch.dtype == np.int64
    assert np.array_equal(E, np.full(18, 3))
    assert np.array_equal(batch, np.full(18, 3))


def test_a_range_is_drawn_once_for_every_client_with_both_ends(ragged: Maker) -> None:
    f = ragged(P=40).federation
    alg = GFL(sampled=2, local_steps=(2, 4), batch=(2, 4))
    E, batch = alg.settle(f, 5)
    assert set(E.tolist()) == set(batch.tolist()) == {2, 3, 4}
    assert not np.array_equal(E, batch)
    again = alg.settle(f, 5)
    assert np.array_equal(E, again[0])
    assert np.array_equal(batch, again[1])
    assert not np.array_equal(E, alg.settle(f, 6)[0])


def test_what_settle_refuses(ragged: Maker) -> None:
    f = ragged().federation  # K = 3, 5, 4, 6
    with pytest.raises(InputError, match="unit 0 has only 3 clients") as refusal:
        GFL(sampled=4).settle(f, 0)
    assert refusal.value.field == "algorithm.sampled"
    with pytest.raises(InputError, match="one number for each of the 18 clients") as refusal:
        GFL(sampled=2, local_steps=[1, 2]).settle(f, 0)
    assert refusal.value.field == "algorithm.local_steps"
    large = f.N.copy()
    large[7] += 1
    GFL(sampled=2, batch=f.N, replacement=False).settle(f, 0)
    GFL(sampled=2, batch=large, replacement=True).settle(f, 0)
    with pytest.raises(InputError, match=f"client 7 has only {f.N[7]} samples") as refusal:
        GFL(sampled=2, batch=large, replacement=False).settle(f, 0)
    assert refusal.value.field == "algorithm.batch"
