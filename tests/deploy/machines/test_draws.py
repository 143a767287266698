"""A deployed server's noise: the plan's law at the plan's scale, alike at both ends of an edge, secret elsewhere."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import struct
import subprocess
import sys
import traceback
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.deploy.machines.draws import secret_noise
from confide.laws.law import GAUSSIAN, LAPLACE, Law
from confide.laws.noise import discrete_gaussian, discrete_laplace
from confide.laws.secret_stream import SecretStream
from confide.rounds.noise import NoiseSource
from confide.secure.keys import BadKeyError, KeyPair, Secret

SERVER, LINK, PAIR = Purpose.SERVER_NOISE, Purpose.LINK_NOISE, Purpose.PAIR_NOISE
QUANTUM, PLAN, TEXT = 2.0**-20 / 3, hashlib.sha256(b"plan").digest(), b"Correct-Horse/Battery+Staple_9xz"
Integers = NDArray[np.int64]


def pair(name: str) -> KeyPair:
    return KeyPair.of(hashlib.sha256(name.encode()).digest())


def source(edges: dict[tuple[int, int], Secret] | None = None, key: bytes = TEXT, plan: bytes = PLAN) -> NoiseSource:
    return secret_noise(QUANTUM, {(1, 4): Secret(TEXT)} if edges is None else edges, plan, SecretStream(key))


def shared(own: KeyPair, public: bytes) -> Secret:
    """As a server agrees on it with a neighbour."""
    return own.agree([public])[0]


def pair_key(a: int, b: int, i: int) -> bytes:
    """RFC 5869 by hand."""
    info = b"confide pair noise" + struct.pack("<III", a, b, i)
    return hmac.digest(hmac.digest(PLAN, TEXT, "sha256"), info + b"\1", "sha256")


UNTAUGHT = replace(LAPLACE, name="uniform", twin=None)


def fits(x: Integers, law: Law, sigma: float, bins: int = 100) -> float:
    """Chi-square p-value of the continuous law in quanta; the grid is far finer than a bin."""
    quantile = {LAPLACE: stats.laplace(scale=sigma / math.sqrt(2)), GAUSSIAN: stats.norm(scale=sigma)}[law]
    edges = quantile.ppf(np.arange(1, bins) / bins) / QUANTUM
    return float(stats.chisquare(np.bincount(np.searchsorted(edges, x), minlength=bins)).pvalue)


# The law


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=str)
@pytest.mark.parametrize(
    ("purpose", "ids"), [(SERVER, (3, 1)), (LINK, (3, 1, 4)), (LINK, (3, 1, 1)), (PAIR, (3, 1, 4))]
)
def test_the_law_has_the_plans_scale(purpose: Purpose, ids: tuple[int, ...], law: Law) -> None:
    """The key is fixed, so these p-values are too; a scale that is 2 % off, or the other law, is seen."""
    sigma, n = 0.7, 200_000
    x = source()(purpose, ids, law, sigma, n)
    assert x.dtype == np.int64
    assert fits(x, law, sigma) > 0.01
    assert fits(x, law, 1.02 * sigma) < 1e-4
    assert fits(x, law, sigma / 1.02) < 1e-4
    assert fits(x, LAPLACE if law == GAUSSIAN else GAUSSIAN, sigma) < 1e-9
    assert abs(np.std(x * QUANTUM) / sigma - 1) < 0.015


def test_small_scales_are_discrete() -> None:
    """At the scale of the grid the discrete law is not the rounded continuous one; P(0) tells them apart."""
    n = 200_000
    for law, sigma, zero in (
        (LAPLACE, math.sqrt(2.0), math.tanh(0.5)),  # scale 1
        (GAUSSIAN, 0.5, 1 / sum(math.exp(-2.0 * x * x) for x in range(-9, 10))),
    ):
        draw = secret_noise(1.0, {}, PLAN, SecretStream(TEXT))
        zeros = int(np.sum(draw(SERVER, (1, 0), law, sigma, n) == 0))
        assert stats.binomtest(zeros, n, zero).pvalue > 0.01


def test_it_is_the_stated_sampler() -> None:
    """Both ends of an edge may run different releases, so what is drawn is fixed to the bit."""
    key = pair_key(1, 4, 9)
    laplace = discrete_laplace(SecretStream(key), 0.7 / math.sqrt(2) / QUANTUM, 50)
    gaussian = discrete_gaussian(SecretStream(key), 0.7 / QUANTUM, 50)
    assert np.array_equal(source()(PAIR, (9, 1, 4), LAPLACE, 0.7, 50), laplace)
    assert np.array_equal(source()(PAIR, (9, 1, 4), GAUSSIAN, 0.7, 50), gaussian)


@pytest.mark.parametrize("purpose", [SERVER, PAIR])
def test_no_deviation_is_no_noise(purpose: Purpose) -> None:
    """'pairwise' asks for server noise of deviation 0 where all noise is on the edges."""
    ids = (1, 1, 4) if purpose == PAIR else (1, 1)
    x = source()(purpose, ids, LAPLACE, 0.0, 4)
    assert x.dtype == np.int64
    assert x.tolist() == [0, 0, 0, 0]


# A server's own noise


def test_own_noise_never_comes_again() -> None:
    """Unlike a simulation's, it does not depend on the round: it goes on with the stream."""
    draw = source()
    seen = [draw(p, ids, LAPLACE, 0.7, 8) for p, ids in ((SERVER, (1, 0)), (SERVER, (1, 0)), (LINK, (1, 0, 2)))]
    assert not any(np.array_equal(x, y) for x, y in itertools.combinations(seen, 2))


def test_own_noise_is_seeded_by_the_system() -> None:
    one, other = (secret_noise(QUANTUM, {}, PLAN)(SERVER, (1, 0), GAUSSIAN, 0.7, 8) for _ in range(2))
    assert not np.array_equal(one, other)


# Pair noise


def test_both_ends_agree() -> None:
    a, b = pair("a"), pair("b")
    here, there = (secret_noise(QUANTUM, {(1, 4): shared(*ends)}, PLAN) for ends in ((a, b.public), (b, a.public)))
    for i, law in itertools.product((1, 2, 2**32 - 1), (LAPLACE, GAUSSIAN)):
        there(SERVER, (i, 4), law, 0.7, 100)  # own noise in between moves nothing
        mine = here(PAIR, (i, 1, 4), law, 0.7, 1000)
        assert np.array_equal(mine, there(PAIR, (i, 1, 4), law, 0.7, 1000))
        assert np.array_equal(mine, here(PAIR, (i, 1, 4), law, 0.7, 1000))  # after a restart


def test_any_other_plan_edge_round_or_secret_gives_other_noise() -> None:
    size, secrets = 20_000, {(1, 4): Secret(TEXT), (1, 5): Secret(TEXT), (4, 5): Secret(TEXT)}
    draws = [
        source(secrets)(PAIR, (7, 1, 4), GAUSSIAN, 0.7, size),
        source(secrets, plan=hashlib.sha256(b"other").digest())(PAIR, (7, 1, 4), GAUSSIAN, 0.7, size),
        source(secrets)(PAIR, (8, 1, 4), GAUSSIAN, 0.7, size),
        source(secrets)(PAIR, (7, 1, 5), GAUSSIAN, 0.7, size),
        source(secrets)(PAIR, (7, 4, 5), GAUSSIAN, 0.7, size),
        source(secrets)(PAIR, (1, 4, 5), GAUSSIAN, 0.7, size),
        source({(1, 4): shared(pair("a"), pair("c").public)})(PAIR, (7, 1, 4), GAUSSIAN, 0.7, size),
        source(secrets)(SERVER, (7, 1), GAUSSIAN, 0.7, size),
    ]
    for x, y in itertools.combinations(draws, 2):
        assert stats.pearsonr(x, y).pvalue > 1e-3  # 28 pairs
    assert stats.pearsonr(draws[0], draws[0] + draws[1]).pvalue < 1e-9


def test_a_third_server_has_another_secret() -> None:
    a, b, c = pair("a"), pair("b"), pair("c")
    assert shared(a, b.public) == shared(b, a.public)
    assert shared(c, b.public) != shared(a, b.public) != shared(c, a.public)


def test_a_key_that_shares_nothing_is_refused() -> None:
    with pytest.raises(BadKeyError):
        shared(pair("a"), bytes(32))


# Refusals


@pytest.mark.parametrize(
    ("ids", "edges"),
    [((1, 1, 4), {}), ((1, 1, 5), {(1, 4): Secret(TEXT)}), ((1, 4, 1), {(1, 4): Secret(TEXT)})],
)
def test_an_edge_without_a_secret(ids: tuple[int, ...], edges: dict[tuple[int, int], Secret]) -> None:
    with pytest.raises(InputError, match=r"edge_secrets = .*no secret for this edge"):
        source(edges)(PAIR, ids, LAPLACE, 0.7, 3)


@pytest.mark.parametrize("purpose", [p for p in Purpose if p not in (SERVER, LINK, PAIR)])
def test_no_other_purpose(purpose: Purpose) -> None:
    with pytest.raises(InputError, match="purpose"):
        source()(purpose, (1, 1, 4), LAPLACE, 0.7, 3)


@pytest.mark.parametrize(
    ("law", "sigma", "field"),
    [
        (UNTAUGHT, 0.7, "noise"),
        (UNTAUGHT, 0.0, "noise"),
        (LAPLACE, -0.7, "sigma"),
        (GAUSSIAN, math.nan, "sigma"),
        (LAPLACE, 2.0**40, "scale"),
        (GAUSSIAN, 2.0**40, "sigma"),
    ],
)
def test_laws_and_scales(law: Law, sigma: float, field: str) -> None:
    for purpose, ids in ((SERVER, (1, 1)), (PAIR, (1, 1, 4))):
        with pytest.raises(InputError, match=f"^{field} = "):
            source()(purpose, ids, law, sigma, 3)


@pytest.mark.parametrize("quantum", [0.0, -1.0, math.nan, math.inf])
def test_the_quantum_is_positive(quantum: float) -> None:
    with pytest.raises(InputError, match=r"^quantum"):
        secret_noise(quantum, {}, PLAN)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_the_plan_is_a_hash(length: int) -> None:
    with pytest.raises(InputError, match=r"^plan"):
        secret_noise(1.0, {}, bytes(length))


# What is shown


def shows(text: str, secret: bytes) -> bool:
    return any(form[:12] in text for form in (repr(bytes(secret))[2:], secret.hex(), str(list(secret))[1:-1]))


def test_nothing_secret_is_printed() -> None:
    """Nor in tracebacks that print every local variable of every frame."""
    assert shows(f"{TEXT!r}", TEXT)
    assert shows(f"{pair_key(1, 4, 1)!r}", pair_key(1, 4, 1))
    draw = secret_noise(QUANTUM, {(1, 4): Secret(TEXT)}, PLAN)
    assert not shows(f"{draw} {draw!r}", TEXT)
    for call in (
        lambda: draw(PAIR, (1, 1, 5), LAPLACE, 0.7, 3),
        lambda: draw(PAIR, (1, 1, 4), LAPLACE, -0.7, 3),
        lambda: draw(PAIR, (1, 1, 4), LAPLACE, 2.0**40, 3),
        lambda: draw(PAIR, (2**32, 1, 4), LAPLACE, 0.7, 3),
        lambda: shared(KeyPair.of(TEXT), bytes(32)),
    ):
        with pytest.raises(Exception) as error:  # noqa: PT011
            call()
        told = "".join(traceback.TracebackException.from_exception(error.value, capture_locals=True).format())
        told = told.split(__file__)[-1]  # this file's own locals hold the secret
        assert not shows(told, TEXT)
        assert not shows(told, pair_key(1, 4, 1))


def test_secrets_stay_secrets() -> None:
    assert type(shared(pair("a"), pair("b").public)) is Secret


def test_a_server_loads_no_heavy_library() -> None:
    program = (
        "import sys, confide.deploy.machines.draws, confide.deploy.machines.epoch\n"
        "print(*(m for m in ('scipy', 'numba', 'networkx', 'polars', 'dp_accounting') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
