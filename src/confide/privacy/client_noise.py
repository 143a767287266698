"""Noise on client links under plain aggregation: what the own server, and with it everybody else, can learn at most.

Every client adds noise of its own to its update before it leaves  (7). The own server sees each update behind one
draw, at a model that it knows. Whatever anybody else sees is a function of the noisy updates, so that its number holds
against all. Who sees sums alone has the Gaussian draws of a whole sum before it, but for those that it may know or that
may be missing. The proof is in docs/design/privacy.md, 7.1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from confide.base.errors import InputError
from confide.plans.words import Amplified, Level, Random, Threat
from confide.privacy.course import Account, Bound, ByChance, Course, Smallest, Worst, tried
from confide.privacy.participation import random_curve
from confide.privacy.sensitivity import REAL_NUMBERS, Sensitivity
from confide.rounds.schemes import Scheme


def by_clients(scheme: Scheme, s: Sensitivity, rounds: int, threat: Threat, blank: Account, dropout: bool) -> Bound:
    """What the clients' own noise proves about this adversary in up to so many rounds.

    Args:
        dropout: whether clients that were drawn may vanish, and their noise with them.
    """
    law, sigma, unit = scheme.law, scheme.sigma_client, s.level is Level.UNIT
    if law.on_grid or s.rounding is not None:
        remedy = "noise of single clients has a proof for real numbers alone; use float, or a secure sum"
        raise InputError("scheme.sigma_client", sigma, remedy)
    if s.sampled is None:
        raise InputError("sampled", None, "each of L clients adds noise of its own; give --sampled L")
    L = s.sampled
    to_norm, why = s.to_norm(law.norm)
    notes = [*_assumptions(scheme, threat, L, unit), *s.assumptions(False), *why]
    shares = 1
    if not unit and not threat.own_server and law.normal:
        shares = _shares(L, threat, dropout)
        notes.append(
            f"of the noisy updates only sums are seen: {shares} of L = {L} draws count in each"
            + (", since clients may drop out" if dropout else ", the curious client's own not" if shares < L else "")
            + ("" if dropout or L == 1 else "; no client that was drawn drops out")
        )
    blank = replace(
        blank, by="clients", law=f"{law.words} noise of every client on its own update", assumptions=tuple(notes)
    )
    moved = to_norm * s.single * (1 if unit else L)  # how far an update moves, whose L-th part psi does
    deltas, copies = np.full(rounds, moved), np.full(rounds, float(L) if unit else 1.0 / shares)
    charged = s.charged(copies, remembers=False)
    course = Course(
        blank=blank,
        law=law,
        deltas=deltas,
        spent=law.cost(deltas, sigma, charged),
        copies=charged,
        released=np.zeros(rounds),  # a function of the updates as well
        dim=s.dim,
        exact=threat.own_server and not dropout and not s.participation.by_chance and s.attained(False),
    )
    always = Worst([course], law.pure, sigma)
    part, still = s.participation, np.zeros(rounds)
    if not isinstance(part, Random | Amplified):
        return always

    def by_chance() -> Bound:
        curve, said = random_curve(
            q=part.rate, added=moved, keep=still, copies=copies, sigma=sigma, noise=law, final=still
        )
        chance = ByChance(replace(blank, assumptions=(*notes, *said)), curve, lambda j, releases: 0)
        return Worst([chance], law.pure, sigma)

    return Smallest(str(part), {Random.name: tried(by_chance), "all": always})


def _shares(L: int, threat: Threat, dropout: bool) -> int:
    """Draws that are in every sum with the target's update and that the adversary does not know.

    The target's is one of them. A curious client of the unit is drawn beside it only where L is at least 2.
    """
    return 1 if dropout else max(1, L - threat.own_client)


def _assumptions(scheme: Scheme, threat: Threat, L: int, unit: bool) -> list[str]:
    behind = f"{L} updates, each behind noise of its own" if unit else "each update behind one draw of noise"
    return [
        "proof: noise on client links"
        + (f"; the own server sees {behind}" if threat.own_server else "; all else is a function of the noisy updates"),
        "plain aggregation: a client clips its update, adds noise that it draws anew in every round, and sends the sum "
        "once; nobody else knows this noise",
        REAL_NUMBERS,
    ]
