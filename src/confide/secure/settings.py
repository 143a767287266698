"""What a user says about secure aggregation; the numbers of a session follow from it and the cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass

from confide.base.errors import InputError
from confide.base.validation import number, one_of, whole
from confide.secure.parameters import SERVERS, Parameters, choose


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

    def share(self, cohort: int) -> float:
        """Standard deviation that one client's share of noise puts on psi."""
        return self.sigma / math.sqrt(self.parameters(cohort).honest_survivors)

    def share_quanta(self, cohort: int, fraction_bits: int) -> float:
        """The same in the client's quanta 2^-fraction_bits, of which psi's is one L-th."""
        return self.share(cohort) * cohort * 2.0**fraction_bits

    def largest_share(self, cohort: int, fraction_bits: int) -> int:
        """No share of noise is beyond this, in quanta (`laws.noise.discrete_gaussian`)."""
        return math.ceil(20.0 * self.share_quanta(cohort, fraction_bits)) + 1 if self.sigma else 0
