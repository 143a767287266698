"""What a user says about secure aggregation; the numbers of a session follow from it and the cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confide.base.errors import InputError
from confide.base.validation import number, one_of, whole
from confide.secure.encoding import Encoding
from confide.secure.parameters import SERVERS, Parameters, choose

if TYPE_CHECKING:
    from confide.secure.session import Task


@dataclass(frozen=True)
class Secure:
    """Settings of `aggregation = "secure"`.

    Attributes:
        ring_bits: 32 or 64; sums are taken modulo 2^ring_bits.
        server: "curious" or "active": what the own server is trusted with.
        corrupted: fraction of a cohort that may collude with the server.
        dropped: fraction of a cohort that may vanish in the middle of a session.
        threshold: shares that put a secret together; the smallest that is safe by default.
        sigma: standard deviation per coordinate that the clients' shares of noise put on psi, counting only honest
            survivors; 0 for none. Discrete Gaussian, added by every client before masking.

    Raises:
        InputError: a number is out of its range, or the kind of server is not known.
    """

    ring_bits: int = 32
    server: str = "curious"
    corrupted: float = 0.1
    dropped: float = 0.25
    threshold: int | None = None
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if self.ring_bits not in (32, 64):
            raise InputError("secure.ring_bits", self.ring_bits, "must be 32 or 64")
        one_of("secure.server", self.server, SERVERS)
        number("secure.corrupted", self.corrupted, 0.0, 1.0)
        number("secure.dropped", self.dropped, 0.0, 1.0)
        number("secure.sigma", self.sigma, 0.0)
        if self.threshold is not None:
            whole("secure.threshold", self.threshold, 2)

    def parameters(self, cohort: int) -> Parameters:
        """For sessions of at most `cohort` clients."""
        try:
            return choose(cohort, self.corrupted, self.dropped, self.server, self.threshold)
        except InputError as e:
            field = "algorithm.sampled" if e.field == "clients" else f"secure.{e.field}"
            raise InputError(field, e.value, e.remedy) from None

    def doubt(self, cohort: int) -> str:
        """What this many clients make of the fractions that a reader would not expect; "" for nothing."""
        if not self.corrupted or self.parameters(cohort).corrupted:
            return ""
        said = "what is promised holds if no client tells the server its keys"
        return f"secure.corrupted = {self.corrupted:g} of {cohort} clients is nobody: {said}"

    def sums(self, cohort: int, sigma_client: float = 0.0) -> SecureSum:
        """The secure sum of a cohort of this size, with all its numbers worked out.

        Args:
            sigma_client: standard deviation of what each client adds to its update, where `sigma` does not say it.
        """
        parameters = self.parameters(cohort)
        on_psi = sigma_client * math.sqrt(parameters.honest_survivors) / cohort
        return SecureSum(parameters, self.ring_bits, float(self.sigma or on_psi))


@dataclass(frozen=True)
class SecureSum:
    """How a server learns the sum of its clients' updates and nothing else.

    Attributes:
        ring_bits: sums are taken modulo 2^ring_bits.
        sigma: what the honest clients' shares of noise put on psi, per coordinate; 0 for none.
    """

    parameters: Parameters
    ring_bits: int = 32
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if self.ring_bits not in (32, 64):
            raise InputError("secure.ring_bits", self.ring_bits, "must be 32 or 64")
        number("secure.sigma", self.sigma, 0.0)

    @property
    def share(self) -> float:
        """Standard deviation that one client's share of noise puts on psi."""
        return self.sigma / math.sqrt(self.parameters.honest_survivors)

    def share_quanta(self, fraction_bits: int) -> float:
        """The same in the client's quanta 2^-fraction_bits, of which psi's is one L-th."""
        return self.share * self.parameters.clients * 2.0**fraction_bits

    def task(self, plan: bytes, unit: int, round: int, model: bytes, length: int) -> Task:
        """A unit's sum in one round, of so many coordinates, for those who were handed a model of this hash."""
        from confide.secure.session import Task  # with all messages, and pydantic: an auditor needs none

        return Task(plan, unit, round, model, self.parameters, length, self.ring_bits)

    def encoding(self, bound: float, fraction_bits: int) -> Encoding:
        """How an update of at most this norm enters the sum; refused where a sum could wrap."""
        noise = math.ceil(20.0 * self.share_quanta(fraction_bits)) + 1 if self.sigma else 0  # no share is beyond that
        try:
            return Encoding(self.ring_bits, fraction_bits, bound, self.parameters.clients, noise=noise)
        except InputError as e:
            raise InputError(f"algorithm.{e.field}", e.value, e.remedy) from None
