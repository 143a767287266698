"""The secure sums of a unit as the plan fixes them: what servers and clients both work out, from the plan alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from confide.plans.plan import Plan
from confide.secure.encoding import Encoding
from confide.secure.parameters import Parameters


class Sums(NamedTuple):
    encoding: Encoding
    parameters: Parameters
    share_quanta: float  # standard deviation of a client's share of noise, in its quanta; 0 for none


def of_plan(plan: Plan) -> Sums | None:
    """None where the server adds up in clear."""
    a, d = plan.aggregation, plan.deployment
    if a is None:
        return None
    assert d is not None and plan.sampled is not None and plan.bound is not None  # noqa: S101, PT018 - Plan checks it
    honest = a["quorum"] - a["corrupted"]
    share = a["sigma"] / math.sqrt(honest) * plan.sampled * 2.0 ** a["fraction_bits"]  # as `Secure.share_quanta`
    noise = math.ceil(20.0 * share) + 1 if share else 0
    encoding = Encoding(a["ring_bits"], a["fraction_bits"], plan.step * plan.bound, plan.sampled, noise=noise)
    parameters = Parameters(plan.sampled, d["degree"], a["threshold"], a["quorum"], a["corrupted"], a["server"])
    return Sums(encoding, parameters, share)
