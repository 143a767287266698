"""Which way of training is taken, by a clock that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from client_updates import cohort, some_clients
from confide.base.errors import InputError
from confide.engines.device.backend import Array, Backend
from confide.engines.device.training.choice import TRIES, fastest
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.clipping import Clip

Given = tuple[Array, Array, Array, Cohort]


def nothing(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
    return w


def too_large(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
    raise MemoryFullError


class MemoryFullError(RuntimeError):
    pass


@pytest.fixture
def given(exact: Backend, monkeypatch: pytest.MonkeyPatch) -> Given:
    monkeypatch.setattr(exact, "out_of_memory", lambda e: isinstance(e, MemoryFullError))
    c = some_clients(2, lambda rng, n: rng.standard_normal(n))
    return exact.to_device(np.zeros((2, 2))), exact.to_device(c.X), exact.to_device(c.d), cohort(exact, c)


def clock(*seconds: float) -> Callable[[], float]:
    """Every way's tries take as long as it says here, and nothing else takes any time."""
    now, ticks = 0.0, []
    for each in seconds:
        ticks += [now]
        for _ in range(TRIES):
            ticks += [now, now + each]
            now += each
        ticks += [now]
    times = iter(ticks)
    return lambda: next(times)


def test_the_fastest_is_taken(exact: Backend, given: Given) -> None:
    ways: dict[str, Train] = {"slow": nothing, "fast": nothing, "middling": nothing}
    with exact.exact():
        name, took = fastest(exact, ways, given, None, 10**6, clock(2.0, 1.0, 1.5))
    assert name == "fast"
    assert took == pytest.approx({"slow": 2.0, "fast": 1.0, "middling": 1.5})


def test_a_short_run_tries_no_more_than_it_takes(exact: Backend, given: Given) -> None:
    ways: dict[str, Train] = {"first": nothing, "second": nothing}
    with exact.exact():
        name, took = fastest(exact, ways, given, None, 2, clock(1.0, 0.1))
    assert (name, list(took)) == ("first", ["first"])


def test_what_does_not_fit_is_left_out(exact: Backend, given: Given) -> None:
    with exact.exact():
        assert fastest(exact, {"large": too_large, "small": nothing}, given, None, 10**6)[0] == "small"
        with pytest.raises(InputError, match="sample fewer"):
            fastest(exact, {"large": too_large}, given, None, 10**6)
