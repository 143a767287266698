"""Graph federated learning as parameters: what one round does, and nothing of how it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from confide.base.arrays import Ints
from confide.base.errors import InputError
from confide.base.randomness import Purpose, generator
from confide.base.validation import one_of, positive, positive_int, probability, whole
from confide.laws.law import DISCRETE_GAUSSIAN
from confide.problems.federation import Federation
from confide.problems.models import Model
from confide.problems.networks.network import Network
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalStep, sgd
from confide.rounds.schemes import Exchange, Scheme, scheme
from confide.secure.encoding import Encoding
from confide.secure.settings import Secure, SecureSum

PerClient = int | tuple[int, int] | Sequence[int] | Ints  # one for all, a range drawn once per client, or given


@dataclass(frozen=True)
class Failures:
    """What goes wrong in a round; rounds count from 1, servers from 0.

    Attributes:
        link: probability that an edge has no flow in a round.
        unit: probability that a unit is absent from a round: no update, no message, no flow.
        links: scheduled failures (round, p, m).
        units: scheduled absences (round, p).
    """

    link: float = 0.0
    unit: float = 0.0
    links: tuple[tuple[int, int, int], ...] = ()
    units: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        probability("failures.link", self.link)
        probability("failures.unit", self.unit)
        for name, width in (("links", 3), ("units", 2)):
            rows = tuple(tuple(row) for row in getattr(self, name))
            for row in rows:
                if len(row) != width:
                    raise InputError(f"failures.{name}", row, f"each entry has {width} numbers, the round first")
                for n, x in enumerate(row):
                    whole(f"failures.{name}", x, 1 if n == 0 else 0)
            object.__setattr__(self, name, rows)

    def __bool__(self) -> bool:
        return bool(self.link or self.unit or self.links or self.units)


@dataclass(frozen=True)
class GFL:
    """Graph federated learning (6)-(8); the defaults are the paper's regression, figure 2.

    Attributes:
        step: mu.
        sampled: L, clients drawn without replacement by every server in every round.
        local_steps: E_{p,k}: one number, a range (low, high) drawn once per client, or one per client.
        batch: B_{p,k}, likewise.
        replacement: mini-batches with replacement (default) or without.
        clip: bound on gradients or updates, or None.
        dropout: probability that a sampled client vanishes; L stays in the denominator.
        failures: links and units that fail in a round.
        arithmetic: "float", or "fixed" (reference engine) where sums over servers are exact.
        fraction_bits: for "fixed": clients' updates are multiples of 2^-fraction_bits.
        aggregation: settings of the secure sum (needs "fixed"), or None: the server adds up updates in clear.
        local: a client's local step, see `confide.rounds.local.sgd`.

    >>> GFL(step=0.0)
    Traceback (most recent call last):
    confide.base.errors.InputError: algorithm.step = 0.0: must be positive
    """

    scheme: Scheme = field(default_factory=lambda: scheme("homomorphic", sigma=math.sqrt(0.1)))
    step: float = 0.7
    sampled: int = 11
    local_steps: PerClient = (1, 10)
    batch: PerClient = (5, 10)
    replacement: bool = True
    clip: Clip | None = None
    dropout: float = 0.0
    failures: Failures = field(default_factory=Failures)
    arithmetic: str = "float"
    fraction_bits: int = 24
    aggregation: Secure | None = None
    local: LocalStep = sgd

    def __post_init__(self) -> None:
        positive("algorithm.step", self.step)
        positive_int("algorithm.sampled", self.sampled)
        probability("algorithm.dropout", self.dropout)
        one_of("algorithm.arithmetic", self.arithmetic, ("float", "fixed"))
        whole("algorithm.fraction_bits", self.fraction_bits, 1, 52)
        if not isinstance(self.replacement, bool):
            raise InputError("algorithm.replacement", self.replacement, "must be true or false")
        for name in ("local_steps", "batch"):
            _check_setting(f"algorithm.{name}", getattr(self, name))
        if self.arithmetic == "fixed" and self.clip is None:
            remedy = "fixed point needs a clip (algorithm.clip and algorithm.bound) to prove that nothing overflows"
            raise InputError("algorithm.arithmetic", self.arithmetic, remedy)
        check_round(self.scheme, self.failures, self.clip, fixed=self.arithmetic == "fixed", built_in=self.local is sgd)
        if self.scheme.sigma_client:
            self._check_client_noise(self.scheme.sigma_client)
        if self.aggregation is not None:
            if self.arithmetic != "fixed":
                remedy = "masks cancel in a ring of integers, not in floating point; use 'fixed'"
                raise InputError("algorithm.arithmetic", self.arithmetic, remedy)
            self.encoding()

    def _check_client_noise(self, sigma: float) -> None:
        if self.aggregation is None:
            if self.arithmetic == "fixed":
                remedy = (
                    "what a client alone adds is real-valued, for float; in fixed point it goes into the secure sum: "
                    "algorithm.aggregation = 'secure'"
                )
                raise InputError("scheme.sigma_client", sigma, remedy)
        elif self.aggregation.sigma:
            remedy = f"is the noise of scheme.sigma_client = {sigma:g} once more, on psi; give one of them"
            raise InputError("secure.sigma", self.aggregation.sigma, remedy)
        elif self.scheme.law.discrete != DISCRETE_GAUSSIAN:
            remedy = "what clients add inside a secure sum is discrete Gaussian; use gaussian, or secure.sigma"
            raise InputError("scheme.noise", str(self.scheme.law), remedy)

    @cached_property
    def sums(self) -> SecureSum | None:
        """The secure sum with what clients add inside it, be it said of one client or of psi; None: sums in clear."""
        if self.aggregation is None:
            return None
        return self.aggregation.sums(self.sampled, self.scheme.sigma_client)

    def encoding(self) -> Encoding:
        """How a client's update enters the secure sum; refused where a sum could wrap."""
        assert self.sums is not None  # noqa: S101 - only asked for a secure sum
        assert self.clip is not None  # noqa: S101 - fixed point has a clip
        bound = self.clip.update_bound(self.step)  # of the norm, hence of every coordinate
        return self.sums.encoding(bound, self.fraction_bits)

    def per_client(self, clients: int, seed: int) -> tuple[Ints, Ints]:
        """E_{p,k} and batch size of so many clients, unit by unit."""
        E = _per_client("algorithm.local_steps", self.local_steps, clients, seed, 0)
        return E, _per_client("algorithm.batch", self.batch, clients, seed, 1)

    def on(self, model: Model) -> Self:
        """With the local step of a network that brings an optimiser.

        Raises:
            InputError: nothing would bound that step, or there is another.
        """
        if not isinstance(model, Network) or model.optimizer is None or self.local == model.local:
            return self
        if self.local is not sgd:
            raise InputError("model.optimizer", model.optimizer, "and algorithm.local are two local steps; give one")
        if self.clip is not None and self.clip.kind == "example":
            remedy = (
                "clipped examples do not bound the step of an optimiser, which rescales what it is given, by mu B; use "
                "'update', or leave model.optimizer out"
            )
            raise InputError("algorithm.clip", self.clip.kind, remedy)
        return replace(self, local=model.local)

    def settle(self, federation: Federation, seed: int) -> tuple[Ints, Ints]:
        """E_{p,k} and batch size of every client.

        Args:
            federation: whose data they train on.
            seed: of what is drawn for each client where the setting is a range.

        Raises:
            InputError: a unit has fewer clients than are sampled, or a client fewer samples than a batch.
        """
        short = np.flatnonzero(self.sampled > federation.K)
        if len(short):
            remedy = f"unit {short[0]} has only {federation.K[short[0]]} clients; sample at most that many"
            raise InputError("algorithm.sampled", self.sampled, remedy)
        E, batch = self.per_client(federation.clients, seed)
        if not self.replacement:
            large = np.flatnonzero(batch > federation.N)
            if len(large):
                c = large[0]
                remedy = f"client {c} has only {federation.N[c]} samples; use smaller batches or replacement = true"
                raise InputError("algorithm.batch", int(batch[c]), remedy)
        return E, batch


def check_round(scheme: Scheme, failures: Failures, clip: Clip | None, *, fixed: bool, built_in: bool) -> None:
    """Refuse what no engine does, so that it has no price either; `built_in` is the local step."""
    if not built_in and clip is not None and clip.kind == "example":
        remedy = "only the built-in local step sees single examples; use 'update' with a step of your own"
        raise InputError("algorithm.clip", clip.kind, remedy)
    if fixed:
        scheme.only_plain("fixed point")
    if scheme.exchange == Exchange.AVERAGE and fixed:
        raise InputError("algorithm.arithmetic", "fixed", "the baseline 'central' divides by P; use float")
    if scheme.exchange == Exchange.AVERAGE and failures:
        raise InputError("failures", failures, "the baseline 'central' assumes a perfect centre; drop them")


def _check_setting(name: str, value: object) -> None:
    if isinstance(value, tuple):
        if len(value) != 2:
            raise InputError(name, value, "a range is (low, high); give a list or an array for one number a client")
        low, high = positive_int(name, value[0]), positive_int(name, value[1])
        if low > high:
            raise InputError(name, value, "the low end must not exceed the high end")
    elif isinstance(value, np.ndarray | list):
        a = np.asarray(value)
        if a.ndim != 1 or not np.issubdtype(a.dtype, np.integer) or a.size == 0 or a.min() < 1:
            raise InputError(name, value, "must hold one positive whole number a client")
    else:
        positive_int(name, value)


def _per_client(name: str, setting: PerClient, clients: int, seed: int, which: int) -> Ints:
    if isinstance(setting, tuple):
        rng = generator(seed, Purpose.HETEROGENEITY, which)
        return rng.integers(setting[0], setting[1], size=clients, endpoint=True, dtype=np.int64)
    if isinstance(setting, int | np.integer):
        return np.full(clients, setting, dtype=np.int64)
    if len(setting) != clients:
        raise InputError(name, f"{len(setting)} numbers", f"one number for each of the {clients} clients is needed")
    return np.asarray(setting, dtype=np.int64)
