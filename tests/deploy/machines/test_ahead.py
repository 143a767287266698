"""Noise that is drawn ahead: all of it comes from the source, in order, and nothing of it twice."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from confide.base.randomness import Purpose
from confide.deploy.machines.ahead import Ahead
from confide.deploy.machines.draws import secret_noise
from confide.laws.law import GAUSSIAN, Law
from confide.rounds.arithmetic import State


class Source:
    """Its n-th draw is n everywhere."""

    def __init__(self) -> None:
        self.numbers = count()
        self.fails = False

    def __call__(self, purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        if self.fails:
            raise OSError("no entropy")
        return np.full(size, next(self.numbers), np.int64)


def ask(ahead: Ahead, size: int = 3, purpose: Purpose = Purpose.SERVER_NOISE, sigma: float = 1.0) -> list[int]:
    return ahead(purpose, (1, 2), GAUSSIAN, sigma, size).tolist()


def test_every_draw_is_handed_out_once() -> None:
    ahead = Ahead(Source())
    assert [ask(ahead) for _ in range(5)] == [[n] * 3 for n in range(5)]


def test_what_was_drawn_for_another_question_is_thrown_away() -> None:
    ahead, seen = Ahead(Source()), []
    for size, sigma in ((2, 1.0), (3, 1.0), (3, 2.0), (3, 2.0), (2, 1.0)):
        found = ask(ahead, size, sigma=sigma)
        assert len(found) == size
        seen.append(found[0])
    assert len(set(seen)) == len(seen)


def test_noise_that_two_ends_derive_alike_is_not_drawn_ahead() -> None:
    source = Source()
    ahead = Ahead(source)
    assert ask(ahead, purpose=Purpose.PAIR_NOISE) == [0] * 3
    assert next(source.numbers) == 1


def test_a_draw_that_fails_is_said_when_it_is_wanted() -> None:
    source = Source()
    ahead = Ahead(source)
    source.fails = True
    with pytest.raises(OSError, match="no entropy"):
        ask(ahead)
    source.fails = False
    first = ask(ahead)
    assert ask(ahead) != first


def test_real_noise_does_not_repeat() -> None:
    ahead = Ahead(secret_noise(2.0**-30, {}, bytes(32)))
    assert len({tuple(ask(ahead)) for _ in range(20)}) == 20
