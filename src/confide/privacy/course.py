"""What one adversary can learn as a run goes on: the costs of all rounds as vectors, and epsilon after any of them.

A `Course` is one proof about one target. epsilon after j rounds is a conversion of the j-th prefix sum, so that a run
of T rounds is worked out once, whoever asks how often. Of several proofs that hold the smallest answer does, of several
targets the largest.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.laws import conversion, discrete_gaussian
from confide.laws.law import ROOT, Conversion, Law, Spent
from confide.laws.noise import LARGEST_SIZE
from confide.plans import words
from confide.plans.privacy import Budget


@dataclass(frozen=True)
class Account:
    """What an adversary can learn, at most.

    Attributes:
        epsilon: at `delta`, in which the sampler's distance is paid; None for a leak.
        epsilon_pure: at delta = 0, for Laplace; of discrete noise but for the sampler's distance.
        rho: zero-concentrated; mu_gdp: Gaussian; None where they do not apply.
        leak: the view determines a noiseless function of the target's data, or discrete noise is so thin that its
            sampler's distance alone is more than delta: what else is given is then that of ideal noise.
        valid: a theorem covers this number; exact: it is attained, not only a bound.
        by: which noise it rests on, that of the "messages", that inside the secure "sum", or that of the "clients".
        law: that noise in words; conversion: how epsilon follows from it. Two numbers about one config may differ here.
        draws: of discrete noise that the proof counts on, each a little off its law.
        deltas: Delta_1..Delta_T of the worst target, in the noise's norm.
        costs: what each round adds to rho (Gaussian) or to pure epsilon (Laplace); a release is not among them.
    """

    threat: str
    adversary: str
    level: str
    adjacency: str
    epsilon: float | None
    delta: float
    epsilon_pure: float | None = None
    rho: float | None = None
    mu_gdp: float | None = None
    leak: bool = False
    valid: bool = True
    exact: bool = False
    target: int | None = None
    by: str = "messages"
    law: str = ""
    conversion: str = ""
    draws: int = 0
    assumptions: tuple[str, ...] = ()
    deltas: tuple[float, ...] = field(default=(), repr=False)
    costs: tuple[float, ...] = field(default=(), repr=False)

    def priced(self, convert: Mapping[str, Callable[[float], float]], draws: int) -> Account:
        """With the smallest epsilon of these conversions from delta, of so many discrete draws."""
        epsilon, how = conversion.smallest(convert, self.delta, draws)
        if math.isfinite(epsilon) or not draws:
            return replace(self, epsilon=epsilon, conversion=str(how), draws=draws)
        why = (
            f"leak: so little noise that no epsilon holds at delta {self.delta:g}: {draws:.3g} discrete draws, each "
            "within 2^-108 of its law, add more than that to delta"
        )
        return replace(self, leak=True, exact=False, draws=draws, assumptions=(why, *self.assumptions))

    @property
    def success(self) -> float:
        """The best true positive rate at 1% false positives of a test for one client's (unit's, example's) data."""
        if self.leak or self.epsilon is None:
            return 1.0
        off = self.draws * conversion.DISTANCE
        rates = [conversion.true_positive_rate(0.01, epsilon=self.epsilon, delta=self.delta)]
        if self.mu_gdp is not None:
            rates.append(conversion.true_positive_rate(0.01 + off, mu=self.mu_gdp) + off)
        if self.epsilon_pure is not None:
            slack = (1.0 + math.exp(min(self.epsilon_pure, 700.0))) * off
            rates.append(conversion.true_positive_rate(0.01, epsilon=self.epsilon_pure, delta=slack))
        return min(rates)

    def used(self, budget: Budget) -> float:
        """In the budget's own unit; infinite for a leak."""
        value = self.epsilon if budget.rho is None else self.rho
        if self.leak and value is None:  # noise that is too thin for an epsilon still has a rho
            return math.inf
        if value is None:
            remedy = f"the account of {self.threat} has no rho; give epsilon and delta instead"
            raise InputError("rho", budget.rho, remedy)
        return value

    def to_dict(self) -> dict[str, Any]:
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("draws", "deltas", "costs")}
        words = {"level": str(self.level), "adjacency": str(self.adjacency), "assumptions": list(self.assumptions)}
        return told | words | {"success_at_1_percent": self.success}


class Bound(ABC):
    """What one adversary can learn, by one proof or the best of several."""

    @abstractmethod
    def at(self, rounds: int, releases: int) -> Account:
        """After so many rounds, and so many releases at their end."""

    def epsilons(self, rounds: Sequence[int]) -> Floats:
        """At least epsilon after each of these numbers of rounds; infinite where there is none."""
        found = [self.at(j, 0) for j in rounds]
        return np.array([math.inf if a.leak or a.epsilon is None else a.epsilon for a in found])


@dataclass(frozen=True)
class Leaked(Bound):
    """The view gives a noiseless function of the data away."""

    account: Account

    def at(self, rounds: int, releases: int) -> Account:
        return self.account


@dataclass(frozen=True)
class Refused(Bound):
    """No proof covers the adversary: the answer, whoever asks for it, is why."""

    why: InputError

    def at(self, rounds: int, releases: int) -> Account:
        raise self.why


def tried(made: Callable[[], Bound]) -> Bound:
    """What is made, or why it cannot be."""
    try:
        return made()
    except InputError as why:
        return Refused(why)


@dataclass(frozen=True)
class Shares:
    """Of the noise of a release on a grid, in quanta: standard deviation of those that count, and of one."""

    width: float
    one: float


@dataclass(frozen=True)
class Course(Bound):
    """One target that always takes part, or in at most so many rounds: costs that add up.

    Attributes:
        blank: the account but for its numbers.
        deltas: Delta_1..Delta_T in the law's norm.  spent: what each round costs.
        copies: of noise in each round.  released: rho of one release after each round.
        width: of the messages' discrete noise in quanta, where a conversion speaks of it.
        shares: of a release on a grid; None where it is real.  hidden: how many the adversary does not know.
        dim: M.  exact: whether some data attain the number.
    """

    blank: Account
    law: Law
    deltas: Floats
    spent: Spent
    copies: Floats
    released: Floats
    dim: int | None
    exact: bool
    width: float | None = None
    shares: Shares | None = None
    hidden: int = 0

    def at(self, rounds: int, releases: int) -> Account:
        sent = float(np.sum(self.spent.rho[:rounds]))
        shared = releases * float(self.released[rounds - 1])
        hidden = releases * self.hidden if self.shares is not None and shared else 0
        draws = drawn(self.law, self.copies[:rounds], hidden, self.dim)
        given: dict[str, Any] = {"deltas": tuple(self.deltas[:rounds].tolist())}
        if self.spent.pure is None:
            return self._by_rho(rounds, sent, shared, draws, given)
        return self._by_pure(self.spent.pure[:rounds], sent, shared, draws, given)

    def epsilons(self, rounds: Sequence[int]) -> Floats:
        """Of pure epsilons quickly, by Renyi sums that are worked out once, and never more than the whole costs."""
        renyi = self.law.renyi
        if self.spent.pure is None or renyi is None:
            return super().epsilons(rounds)
        ratios, counts = self.spent.pure / np.maximum(self.copies, 1.0), self.copies.astype(int)
        sums = np.array([np.cumsum(counts * renyi(ratios, ROOT, 1.0, a)) for a in conversion.ORDERS.tolist()])
        pure, whole = np.cumsum(self.spent.pure), super().epsilons([len(self.deltas)])[0]

        def after(j: int) -> float:
            draws = drawn(self.law, self.copies[:j], 0, self.dim)
            by_renyi = conversion.with_draws(
                lambda delta: conversion.renyi_epsilon(lambda orders: sums[:, j - 1], delta), self.blank.delta, draws
            )
            return float(min(pure[j - 1], by_renyi, whole))

        return np.array([after(j) for j in rounds])

    def _by_rho(self, rounds: int, sent: float, shared: float, draws: int, given: dict[str, Any]) -> Account:
        rho, mu, convert = sent + shared, self._mu(sent, shared), dict[str, Callable[[float], float]]()
        given["costs"] = tuple(self.spent.rho[:rounds].tolist())
        rounded = not self.law.normal or (shared > 0.0 and self.shares is not None)  # shares on a grid are discrete
        if mu is not None:
            how = Conversion.ROUNDED if rounded else Conversion.GAUSSIAN
            convert[how] = lambda delta: conversion.gaussian_epsilon(mu, delta)
        if rounded:
            convert[Conversion.ZCDP] = lambda delta: conversion.zcdp_epsilon(rho, delta)
        found = replace(self.blank, rho=rho, mu_gdp=mu, exact=self.exact and not rounded, **given)
        return found.priced(convert, draws)

    def _by_pure(self, each: Floats, sent: float, shared: float, draws: int, given: dict[str, Any]) -> Account:
        convert = dict[str, Callable[[float], float]]()
        given |= {"costs": tuple(each.tolist()), "rho": sent + shared}
        counts = self.copies[: len(each)]
        every = np.repeat(each / np.maximum(counts, 1.0), counts.astype(int))
        pure = float(every.sum())
        if shared:  # either all in rho, or the messages at delta 0 and the release at delta
            convert[f"{Conversion.PURE}, and {Conversion.ZCDP} for the release"] = lambda delta: (
                pure + conversion.zcdp_epsilon(shared, delta)
            )
            convert[Conversion.ZCDP] = lambda delta: conversion.zcdp_epsilon(sent + shared, delta)
            return replace(self.blank, **given).priced(convert, draws)
        convert[Conversion.PURE] = lambda delta: pure
        closed = Conversion.LAPLACE in self.law.conversions
        if closed:
            convert[Conversion.LAPLACE] = lambda delta: conversion.laplace_epsilon(every, delta)
        else:
            convert[Conversion.PURES] = lambda delta: conversion.pure_epsilon(every, delta)
        found = replace(self.blank, epsilon_pure=pure, exact=self.exact and closed, **given).priced(convert, draws)
        return replace(found, exact=found.exact and found.epsilon == pure)  # its conversion to a delta is a bound

    def _mu(self, sent: float, shared: float) -> float | None:
        """mu of Gaussian differential privacy, where both the messages' noise and a release's shares have one."""
        parts: list[float | None] = [2.0 * sent if self.law.normal or not sent else None]
        if sent and self.width is not None:
            parts = [discrete_gaussian.mu_squared(sent, self.width)]
        if shared and self.shares is None:
            parts.append(2.0 * shared)
        elif shared and self.shares is not None:
            parts.append(discrete_gaussian.mu_squared(shared, self.shares.width, self.shares.one))
        found = [x for x in parts if x is not None]
        return math.sqrt(math.fsum(found)) if len(found) == len(parts) else None


@dataclass(frozen=True)
class ByChance(Bound):
    """One target that takes part at random: only the whole has a price, by its Renyi divergence after every round.

    Attributes:
        curve: releases -> Renyi divergence by (order of `conversion.ORDERS`, rounds).
        draws: (rounds, releases) -> discrete draws that the proof counts on.
    """

    blank: Account
    curve: Callable[[int], Floats]
    draws: Callable[[int, int], int]

    def at(self, rounds: int, releases: int) -> Account:
        values = self.curve(releases)[:, rounds - 1]
        convert: dict[str, Callable[[float], float]] = {
            Conversion.RENYI: lambda delta: conversion.renyi_epsilon(lambda orders: values, delta)
        }
        return self.blank.priced(convert, self.draws(rounds, releases))


@dataclass(frozen=True)
class Worst(Bound):
    """The worst of several targets; its pure epsilon, rho and costs are made to hold for every one of them.

    One target may be the worst of few rounds and another of many, or one in pure epsilon and another at delta. A ledger
    charges the same cost to everybody, and may end early: costs add up, after every round, to no less than any
    target's.
    """

    targets: Sequence[Bound]
    pure: bool
    sigma: float

    def at(self, rounds: int, releases: int) -> Account:
        try:
            found = [target.at(rounds, releases) for target in self.targets]
        except OverflowError:
            raise too_thin(self.sigma) from None
        worst = max(found, key=lambda a: math.inf if a.leak else a.epsilon or 0.0)
        if not all(map(math.isfinite, (worst.epsilon or 0.0, worst.rho or 0.0))):
            raise too_thin(self.sigma)
        if len(found) == 1:
            return worst
        pure = [a.epsilon_pure for a in found if a.epsilon_pure is not None]
        rho = [a.rho for a in found if a.rho is not None]
        mu = [a.mu_gdp for a in found if a.mu_gdp is not None]
        return replace(
            worst,
            epsilon_pure=max(pure) if worst.epsilon_pure is not None else None,
            rho=max(rho) if worst.rho is not None else None,
            mu_gdp=max(mu) if len(mu) == len(found) else None,
            draws=max(a.draws for a in found),
            costs=self._costs(found),
        )

    def epsilons(self, rounds: Sequence[int]) -> Floats:
        try:
            return np.asarray(np.max([target.epsilons(rounds) for target in self.targets], axis=0))
        except OverflowError:
            raise too_thin(self.sigma) from None

    def _costs(self, found: list[Account]) -> tuple[float, ...]:
        if not all(a.costs for a in found):  # a target that leaks has none
            return ()
        costs = np.array([a.costs for a in found])
        if self.pure:  # a pure epsilon has a rho too, and neither may add up to less
            return tuple(costs.max(axis=0).tolist())
        return tuple(np.diff(np.cumsum(costs, axis=1).max(axis=0), prepend=0.0).tolist())


def drawn(law: Law, copies: Floats, shares: int, dim: int | None) -> int:
    """Discrete draws that a target's proof counts on: its own messages' in every round, and shares of releases."""
    each = float(np.maximum(copies, 1.0).sum()) if law.on_grid else 0.0
    return math.ceil(each + shares) * (dim or LARGEST_SIZE)


def too_thin(sigma: float) -> InputError:
    return InputError("sigma", sigma, "epsilon overflows at this noise level; increase sigma")


@dataclass(frozen=True)
class Smallest(Bound):
    """The smallest of the bounds that hold for a client that is drawn at random, each by its name.

    A client that is drawn at random is covered by every bound for a client that may always be there.
    """

    participation: str
    bounds: Mapping[str, Bound]

    def at(self, rounds: int, releases: int) -> Account:
        found: dict[str, Account] = {}
        refused: dict[str, InputError] = {}
        for name, bound in self.bounds.items():
            try:
                found[name] = bound.at(rounds, releases)
            except InputError as e:
                refused[name] = e
        if not found:
            raise next(iter(refused.values()))
        kind, best = min(found.items(), key=lambda x: math.inf if x[1].epsilon is None else x[1].epsilon)
        others = [f"{k} would give {a.epsilon:.4g}" for k, a in found.items() if k != kind and a.epsilon is not None]
        others += [f"{k} is refused ({e.remedy})" for k, e in refused.items()]
        note = f"participation {self.participation}: the smallest of the bounds that hold is that of '{kind}'"
        note += "".join(f"; {other}" for other in others)
        return replace(best, exact=False, assumptions=(*best.assumptions, note))

    def epsilons(self, rounds: Sequence[int]) -> Floats:
        return _smallest(self.bounds.values(), rounds)


@dataclass(frozen=True)
class EitherNoise(Bound):
    """The better of two proofs about one adversary: by the noise in messages, or by that of the clients.

    Both hold, so the smaller epsilon does. The clients' noise does not weaken the proofs about messages: it is
    independent of the data, so that they hold given its value. What one of them refuses the other may answer.
    """

    messages: Bound
    clients: Bound

    def at(self, rounds: int, releases: int) -> Account:
        one, why = self._by_messages(rounds, releases)
        try:
            other = self.clients.at(rounds, releases)
        except InputError:
            if one is None or one.leak:
                raise
            return one
        if other.epsilon is None:  # so little noise that none holds at this delta
            return other if one is None or one.leak else one
        if one is None or one.leak or one.epsilon is None or other.epsilon < one.epsilon:
            if one is not None and one.epsilon is not None:
                why = f"the messages' own noise alone would give epsilon {one.epsilon:.4g}"
            shown = () if words.threat(other.threat).own_server else (why,)
            target = other.target if one is None else one.target
            return replace(other, target=target, assumptions=other.assumptions + shown)
        which = "inside the secure sum" if other.by == "sum" else "on client links"
        note = f"by the noise in the messages; that {which} alone would give epsilon {other.epsilon:.4g}"
        return replace(one, assumptions=(*one.assumptions, note))

    def epsilons(self, rounds: Sequence[int]) -> Floats:
        return _smallest((self.messages, self.clients), rounds)

    def _by_messages(self, rounds: int, releases: int) -> tuple[Account | None, str]:
        try:
            one = self.messages.at(rounds, releases)
        except InputError as refusal:
            return None, f"the messages' own noise gives no number here: {refusal}"
        if not one.leak:
            return replace(one, exact=False), ""  # no data attain it behind the clients' noise
        reason = one.assumptions[0].removeprefix("leak: ")
        return one, f"the messages' own noise does not hold this adversary off: {reason}"


def _smallest(bounds: Iterable[Bound], rounds: Sequence[int]) -> Floats:
    """Of bounds that all hold; what one of them refuses another may answer."""
    found = np.full(len(rounds), math.inf)
    for bound in bounds:
        with suppress(InputError):
            found = np.minimum(found, bound.epsilons(rounds))
    return found
