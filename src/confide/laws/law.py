"""The laws of noise, a row each: what a round of it costs, how it is drawn, and which conversions to epsilon hold.

Nobody else asks which law it is. A new law is a row here, with a branch of `engines.kernel.fill_noise` where the
compiled engine draws it; whatever else needs more than the row says refuses the law until it is taught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import Words, gaussian_of, laplace_of
from confide.base.validation import number, one_of
from confide.laws.noise import Integers, discrete_gaussian, discrete_laplace

if TYPE_CHECKING:
    from confide.laws.secret_stream import SecretStream

ROOT = 2.0**0.5  # the standard deviation of a Laplace law of scale 1


class Norm(StrEnum):
    """A length of vectors: the sum of absolute values, or the root of the sum of squares."""

    L1 = "l1"
    L2 = "l2"


class Conversion(StrEnum):
    """What a number was converted by, for those who compare two of them."""

    GAUSSIAN = "exact Gaussian differential privacy"
    ROUNDED = "Gaussian differential privacy of the noise's variance less 9 quanta^2"
    ZCDP = "zCDP to (epsilon, delta)"
    PURE = "pure epsilon, added up"
    LAPLACE = "composition of Laplace mechanisms at delta"
    PURES = "composition of pure epsilons at delta"
    RENYI = "a Rényi curve to (epsilon, delta)"


class Spent(NamedTuple):
    """What each of several rounds costs.

    Attributes:
        rho: zero-concentrated.
        pure: pure epsilon; None where no finite one holds.
    """

    rho: Floats
    pure: Floats | None = None


@dataclass(frozen=True, repr=False)
class Law:
    """One law of noise, of independent coordinates.

    Attributes:
        name: in configs, plans and ledgers, e.g. "discrete-gaussian".
        words: in statements, before "noise".
        norm: of the deviation that its cost is about.
        on_grid: whether it draws integers, which may leave a machine; else reals, for simulations.
        twin: the law of the same shape on the other side, integers or reals; None if there is none.
        cost: (deviations, standard deviation, independent copies) -> what each round costs.
        renyi: (deviations, standard deviation, copies, order) -> Renyi divergence of each; None if no bound is known.
        conversions: those that hold for a sum of its costs.
        stream: (words, size) -> draws with standard deviation 1, of the `words_for(size)` words of a seeded stream.
        secret: (stream, standard deviation, quantum, size) -> whole quanta, by the sampler of a deployment.
        kernel: its number in the compiled engine; None if that cannot draw it.
    """

    name: str
    words: str
    norm: Norm
    on_grid: bool
    twin: str | None
    cost: Callable[[Floats, float, Floats | float], Spent]
    renyi: Callable[[Floats, float, float, float], Floats] | None
    conversions: tuple[Conversion, ...]
    stream: Callable[[Words, int], Floats] | None = None
    secret: Callable[[SecretStream, float, float, int], Integers] | None = None
    kernel: int | None = None

    @classmethod
    def parse(cls, value: Law | str, field: str = "noise", on_grid: bool | None = None) -> Law:
        """The law of this name, if it draws integers or reals as asked for.

        Args:
            field: named in the error.  on_grid: None, and both are taken.

        >>> Law.parse("discrete-laplace").continuous
        Law('laplace')
        """
        known = [law.name for law in LAWS.values() if on_grid in (None, law.on_grid)]
        return LAWS[one_of(field, value.name if isinstance(value, Law) else value, known)]

    @property
    def pure(self) -> bool:
        """Whether a round has a pure epsilon, which is then what a ledger charges; else it charges a rho."""
        return Conversion.PURE in self.conversions

    @property
    def normal(self) -> bool:
        """Whether a draw is exactly normal: sums of draws are normal, and a rho says all, mu = sqrt(2 rho)."""
        return Conversion.GAUSSIAN in self.conversions

    @property
    def discrete(self) -> Law:
        """The same law on the integers."""
        return self if self.on_grid else self._other("has no form on the integers, and only integers leave a machine")

    @property
    def continuous(self) -> Law:
        """The same law on the reals."""
        return self._other("has no form on the reals, which simulations draw") if self.on_grid else self

    def _other(self, why_not: str) -> Law:
        if self.twin is None:
            raise InputError("noise", self.name, why_not)
        return LAWS[self.twin]

    def reals(self, words: Words, size: int) -> Floats:
        """Draws with standard deviation 1, of a seeded stream's `words_for(size)` words."""
        if self.stream is None:
            raise InputError("noise", self.name, "draws no reals")
        return self.stream(words, size)

    def integers(self, stream: SecretStream, sigma: float, quantum: float, size: int) -> Integers:
        """Whole quanta, by the sampler of a deployment; zeros where sigma is 0, as "pairwise" may have it."""
        if self.secret is None:
            raise InputError("noise", self.name, "has no sampler for noise that leaves a machine")
        if number("sigma", sigma, least=0.0) == 0.0:
            return np.zeros(size, np.int64)
        return self.secret(stream, sigma, quantum, size)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Law({self.name!r})"


def _gaussian_cost(deviation: Floats, sigma: float, copies: Floats | float) -> Spent:
    # So little noise that nothing is finite, nor 0 times it under a cap, which whoever adds up sees.
    with np.errstate(over="ignore", invalid="ignore"):
        return Spent(copies * (deviation / sigma) ** 2 / 2.0)  # a square of either alone may vanish


def _laplace_cost(deviation: Floats, sigma: float, copies: Floats | float) -> Spent:
    """Of an epsilon the rho is at most epsilon^2 / 2, and at most epsilon: D_a <= epsilon <= a epsilon."""
    with np.errstate(over="ignore", invalid="ignore"):  # likewise
        each = deviation / (sigma / ROOT)
        return Spent(copies * np.minimum(each**2 / 2.0, each), copies * each)


def _gaussian_renyi(deviation: Floats, sigma: float, copies: float, order: float) -> Floats:
    found: Floats = order * (copies * sigma**-2.0) * deviation**2 / 2.0
    return found


def _laplace_renyi(deviation: Floats, sigma: float, copies: float, order: float) -> Floats:
    from confide.laws.conversion import laplace_renyi  # 2 MiB that a client does without

    return laplace_renyi(copies * ROOT / sigma * deviation, order)


def _discrete_laplace_renyi(deviation: Floats, sigma: float, copies: float, order: float) -> Floats:
    """By its pure epsilon alone."""
    from confide.laws.conversion import pure_renyi

    return pure_renyi(copies * ROOT / sigma * deviation, order)


def _secret_gaussian(stream: SecretStream, sigma: float, quantum: float, size: int) -> Integers:
    return discrete_gaussian(stream, sigma / quantum, size)


def _secret_laplace(stream: SecretStream, sigma: float, quantum: float, size: int) -> Integers:
    return discrete_laplace(stream, sigma / ROOT / quantum, size)


GAUSSIAN = Law(
    "gaussian",
    "continuous Gaussian",
    Norm.L2,
    on_grid=False,
    twin="discrete-gaussian",
    cost=_gaussian_cost,
    renyi=_gaussian_renyi,
    conversions=(Conversion.GAUSSIAN,),
    stream=gaussian_of,
    kernel=1,
)
LAPLACE = Law(
    "laplace",
    "continuous Laplace",
    Norm.L1,
    on_grid=False,
    twin="discrete-laplace",
    cost=_laplace_cost,
    renyi=_laplace_renyi,
    conversions=(Conversion.PURE, Conversion.LAPLACE),
    stream=laplace_of,
    kernel=0,
)
DISCRETE_GAUSSIAN = Law(
    "discrete-gaussian",
    "discrete Gaussian",
    Norm.L2,
    on_grid=True,
    twin="gaussian",
    cost=_gaussian_cost,
    renyi=_gaussian_renyi,
    conversions=(Conversion.ROUNDED, Conversion.ZCDP),
    secret=_secret_gaussian,
)
DISCRETE_LAPLACE = Law(
    "discrete-laplace",
    "discrete Laplace",
    Norm.L1,
    on_grid=True,
    twin="laplace",
    cost=_laplace_cost,
    renyi=_discrete_laplace_renyi,
    conversions=(Conversion.PURE, Conversion.PURES),
    secret=_secret_laplace,
)
LAWS = {law.name: law for law in (GAUSSIAN, LAPLACE, DISCRETE_GAUSSIAN, DISCRETE_LAPLACE)}
