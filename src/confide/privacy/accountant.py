"""epsilon for a named adversary: scheme, sensitivity and threat in, a number with its assumptions out.

Most schemes have closed forms (`closed_forms`), which give a `course` of costs. A scheme that they do not cover goes to
the general accountant (`general`) or is refused; tests hold the two equal to 1e-10. Noise of the clients, inside the
secure sums (`sum_noise`) or on their links (`client_noise`), is a second proof about every adversary; the smaller
epsilon is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, assert_never

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, positive, positive_int
from confide.graph import Graph
from confide.laws.law import GAUSSIAN, Conversion, Law, Spent
from confide.plans import words
from confide.privacy.client_noise import by_clients
from confide.privacy.closed_forms import Target, covers, leak, own_server, roundings, seen, seen_sigma, targets
from confide.privacy.course import (
    Account,
    Bound,
    ByChance,
    Course,
    EitherNoise,
    Leaked,
    Shares,
    Smallest,
    Worst,
    drawn,
    too_thin,
    tried,
)
from confide.privacy.general import TOLERANCE, Exposure, check_apart, expose_each, rounds_of
from confide.privacy.participation import Curve, amplified_curve, random_curve
from confide.privacy.reveal import Reveal, against, known_shares
from confide.privacy.sensitivity import REAL_NUMBERS, Sensitivity
from confide.privacy.sum_noise import SumNoise, by_sums, release_rho
from confide.rounds.schemes import Exchange, Place, Scheme

LONGEST = 4 * 10**7  # of servers times rounds squared: what the general accountant holds and multiplies


def account(
    scheme: Scheme,
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    *,
    rounds: int,
    noise: Law | str | None = None,
    threat: words.Threat | str = "links",
    release: Reveal | str = "none",
    delta: float = 1e-5,
    sum_noise: SumNoise | None = None,
    secure: bool = True,
    dropout: bool = False,
) -> Account:
    """The privacy of `rounds` rounds against one adversary, for the worst honest server.

    Args:
        scheme: where noise is drawn, and how much.
        graph: one graph, or several that take turns.
        sensitivity: how far one client (example, unit) can move its server.
        rounds: T.
        noise: the law actually drawn, or its name; `scheme.law` by default. `scheme.sigma` is its standard deviation.
        threat: links, colluders:1,2, neighbours, own-client or own-server.
        release: in words, its shares of noise are sized for `threat`; a `Reveal` says for how many they are.
        delta: of (epsilon, delta), above 0 and below 1.
        sum_noise: noise that the clients put inside every secure sum.
        secure: whether updates are masked, so that the own server sees their sum only; else it sees each, behind the
            scheme's noise on client links if there is any.
        dropout: whether clients may vanish, with the noise on their links.

    Returns:
        An `Account`: `epsilon`, `rho` or `leak`, and what they rest on (`assumptions`).

    Raises:
        InputError: no proof covers this adversary, or the arguments contradict each other.

    >>> from confide.privacy.sensitivity import Sensitivity
    >>> from confide.rounds.schemes import scheme
    >>> shared = scheme("shared", 10.0, noise="gaussian")
    >>> round(account(shared, Graph.ring(4), Sensitivity(0.1, 1.0, level="unit"), rounds=50).rho, 6)
    0.01
    """
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    rounds = positive_int("rounds", rounds)
    threat = words.threat(threat)
    if isinstance(release, str):
        release = Reveal.sized(words.release(release), threat, graphs) if graphs else Reveal()
    scheme = replace(scheme, law=Law.parse(noise or scheme.law))
    question = Question(scheme, graphs, sensitivity, rounds, threat, release, delta, sum_noise, secure, dropout=dropout)
    return bound(question).at(rounds, release.count)


@dataclass(frozen=True)
class Question:
    """Who looks at what: all that an answer follows from.

    Attributes:
        scheme: its law is the one that is drawn.  graphs: taking turns.
        rounds: how many there may be.
        inside: noise that the clients put inside every secure sum.  secure: as of `account`.
        active: the own server may lie.  dropout: as of `account`.
    """

    scheme: Scheme
    graphs: Sequence[Graph]
    sensitivity: Sensitivity
    rounds: int
    threat: words.Threat
    release: Reveal
    delta: float
    inside: SumNoise | None
    secure: bool
    active: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        if self.secure and self.scheme.sigma_client:
            remedy = "under masks the noise of clients is that of their sum: give sum_noise; or aggregate in clear"
            raise InputError("scheme.sigma_client", self.scheme.sigma_client, remedy)
        if not 0.0 < number("delta", self.delta) < 1.0:
            raise InputError("delta", self.delta, "must lie strictly between 0 and 1")
        if not self.graphs or any(g.P != self.P for g in self.graphs):
            raise InputError("graph", self.graphs, "give one graph, or several with the same servers")
        words.check_servers(self.threat, self.P)
        if self.P == 1 and isinstance(self.threat, words.Links | words.Neighbours) and not self.released:
            remedy = "there are no links: one server sends no messages, so that an epsilon of 0 would protect nobody"
            raise InputError("threat", str(self.threat), f"{remedy}; name own-client, own-server or a release")

    @property
    def P(self) -> int:
        return self.graphs[0].P

    @property
    def released(self) -> bool:
        return not isinstance(self.release.release, words.Nothing)

    def heard(self, p: int) -> bool:
        """Whether somebody receives the message of p in every round; it is counted also where p has no neighbour."""
        to_all = self.P == 1 or self.scheme.exchange is not Exchange.GRAPH or self.scheme.by_link
        return to_all or all(g.degrees[p] for g in self.graphs[: self.rounds])

    def blank(self, **told: Any) -> Account:
        """The answer, but for its numbers."""
        s, adversary = self.sensitivity, self.threat.adversary
        if self.released:
            adversary += f", and {self.release.words}"
        return Account(str(self.threat), adversary, s.level, s.adjacency, None, self.delta, **told)


def bound(asked: Question) -> Bound:
    """What this adversary can learn after any number of rounds up to `rounds`."""
    inside, s = asked.inside, asked.sensitivity
    if inside is None:
        if not asked.scheme.sigma_client:
            return _by_messages(asked)
        return EitherNoise(
            tried(lambda: _by_messages(asked)),
            tried(lambda: by_clients(asked.scheme, s, asked.rounds, asked.threat, asked.blank(), asked.dropout)),
        )
    if not asked.secure:
        raise InputError("sum_noise", inside.sigma, "shares add up only inside a secure sum; aggregate securely")
    if s.dim is not None and s.dim != inside.dim:
        raise InputError("dim", s.dim, f"the noise inside the sum has {inside.dim} coordinates")
    return EitherNoise(
        tried(lambda: _by_messages(asked)),
        tried(lambda: by_sums(inside, s, asked.rounds, asked.threat, asked.blank())),
    )


def paper_theorem(step: float, bound: float, sigma: float, rounds: int) -> tuple[float, list[str]]:
    """Theorem 2 as printed: epsilon(i) = sqrt 2 mu B i (i + 1) / sigma_g, and what it leaves open."""
    for name, value in (("step", step), ("bound", bound), ("sigma", sigma)):
        positive(name, value)
    positive_int("rounds", rounds)
    return math.sqrt(2.0) * step * bound * rounds * (rounds + 1) / sigma, [
        "the paper's Theorem 2 as printed, not a statement of confide",
        "B must be an l1 bound (or multiply by sqrt M); the paper's Lemma 4 does not give one: clip",
        "true at unit level; the text speaks of one client",
        "one adversary only: an eavesdropper; the own server, own clients and a final model are not covered",
        "comparisons at equal sigma_g are not comparisons at equal privacy",
    ]


def paper_sigma(step: float, bound: float, epsilon: float, rounds: int) -> tuple[float, list[str]]:
    """The same the other way round, as the theorem is worded: sigma_g = sqrt 2 mu B (1 + i) i / epsilon(i)."""
    positive("epsilon", epsilon)
    return paper_theorem(step, bound, epsilon, rounds)  # sigma epsilon is the same number


def _by_messages(asked: Question) -> Bound:
    """The bound that rests on the noise of servers and links alone."""
    part = asked.sensitivity.participation
    if not covers(asked.scheme):
        return by_general(asked)
    match part:
        case words.Always() | words.Cap():
            return _by_one_bound(asked, asked.sensitivity)
        case words.Random():
            options: tuple[words.Participation, ...] = (part, words.Always())
        case words.Amplified():
            options = (part, words.Random(part.rate), words.Always())
        case _:
            assert_never(part)
    each = [replace(asked.sensitivity, participation=option) for option in options]
    return Smallest(str(part), {s.participation.name: tried(partial(_by_one_bound, asked, s)) for s in each})


def _by_one_bound(asked: Question, s: Sensitivity) -> Bound:
    scheme, law, release = asked.scheme, asked.scheme.law, asked.release.release
    if scheme.sigma_pair and (not law.normal or s.rounding is not None):
        # Rounded one by one, noises are no function of their sum: 0.2 quanta wide, 25.0 was attained where 20.7 is due.
        remedy = "edge noise that cancels between two ends has a proof for Gaussian noise only, not for what is rounded"
        raise InputError("noise", law.name, remedy)
    blank = _said(asked)
    why = leak(scheme, asked.graphs, asked.threat, release, asked.secure, asked.active)
    if why is not None:
        return Leaked(replace(blank, leak=True, assumptions=(f"leak: {why}", *blank.assumptions)))
    looked_at = targets(scheme, asked.graphs, asked.threat, asked.rounds, release)
    try:
        found = [_course(t, asked, s, blank) for t in looked_at]
    except OverflowError:
        raise too_thin(scheme.sigma) from None
    return Worst(found, law.pure, scheme.sigma)


def _course(t: Target, asked: Question, s: Sensitivity, blank: Account) -> Bound:
    """One target, with its costs after every round."""
    scheme, law, release, P = asked.scheme, asked.scheme.law, asked.release, asked.P
    centroid = isinstance(release.release, words.Centroid)
    rounded = 0 if s.rounding is None else max(roundings(scheme, g, t.p) for g in asked.graphs)
    remembers = t.remembers or rounded > 0
    to_norm, norm_notes = s.to_norm(law.norm)
    notes = [*blank.assumptions, *s.assumptions(remembers), *norm_notes]
    known = known_shares(asked.threat, asked.graphs, t.p)
    if centroid:
        notes.append(
            "release: a secure sum over servers reveals only the mean plus noise, to everybody; every server adds a "
            f"Gaussian share, and {P - known} of {P} shares are not known to this adversary"
        )
    if isinstance(s.participation, words.Random | words.Amplified):
        if s.rounding is not None and (remembers or s.level is words.Level.EXAMPLE):
            remedy = "roundings add up whoever takes part, and this proof does not count them; use all or cap:N"
            raise InputError("participation", str(s.participation), remedy)
        final = t.carry / P / release.hidden(P, known) if centroid and t.carry.any() else np.zeros(len(t.carry))
        curve, why = _curve(t, asked, s, s.participation, final)
        blank = replace(blank, target=t.p, assumptions=(*notes, *why))
        counted = (P - known) * (s.rounding is not None and bool(final.any()))
        return ByChance(blank, curve, lambda j, count: drawn(law, t.copies[:j], count * counted, s.dim))
    if s.rounding is not None:
        notes.append(s.rounding.words)
    copies, ones, sigma = s.charged(t.copies, remembers), s.ones(law.norm), seen_sigma(scheme, P)
    deltas = to_norm * s.deltas(
        lambda j, before: np.asarray(t.carry[j - 1] * before[-1]), len(t.carry), remembers, ones=ones, roundings=rounded
    )
    released = np.zeros(len(t.carry))
    if centroid and (t.carry.any() or rounded):
        released = _release_rhos(t.carry * deltas / to_norm, rounded * ones, s, P, release, known)
    width, shares = None, None
    if s.rounding is not None:
        q = s.rounding.quantum
        if Conversion.ROUNDED in law.conversions and scheme.exchange is Exchange.GRAPH:
            width = scheme.sigma / q
        if centroid:
            shares = Shares(math.sqrt(P - known) * release.share(P) / q, release.share(P) / q)
    # per-link's own noise is assumed known, which no data attains.
    seen_whole = Place.OWN not in scheme.places and asked.heard(t.p)
    return Course(
        blank=replace(blank, target=t.p, assumptions=tuple(notes)),
        law=law,
        deltas=deltas,
        spent=law.cost(deltas, sigma, copies),
        copies=copies,
        released=released,
        width=width,
        shares=shares,
        hidden=P - known,
        dim=s.dim,
        exact=isinstance(s.participation, words.Always) and seen_whole and s.attained(remembers),
    )


def _release_rhos(kept: Floats, rounded: float, s: Sensitivity, P: int, release: Reveal, known: int) -> Floats:
    """rho of the noisy mean after each round: given the messages the target's state is c Delta_j away in l2, and the
    mean 1/P of it."""
    if s.rounding is None:
        with np.errstate(over="ignore"):
            return np.asarray((kept / P / release.hidden(P, known)) ** 2 / 2.0)
    dim, quantum = positive_int("dim", s.dim), s.rounding.quantum
    sized = min(release.colluders, P - 1)
    apart = kept + rounded * quantum
    each = {
        x: release_rho(x, release.sigma, servers=P, colluders=sized, known=known, quantum=quantum, dim=dim)
        for x in np.unique(apart).tolist()
    }
    return np.array([each[x] for x in apart.tolist()])


def _curve(
    t: Target, asked: Question, s: Sensitivity, part: words.Random | words.Amplified, final: Floats
) -> tuple[Curve, list[str]]:
    law, sigma = asked.scheme.law, seen_sigma(asked.scheme, asked.P)
    if isinstance(part, words.Amplified):
        if asked.threat.own_client or asked.threat.own_server:
            remedy = f"{asked.threat} learns who takes part; amplification counts only for those who cannot"
            raise InputError("participation", str(part), remedy)
        if t.remembers:
            remedy = "the state remembers earlier participations (carry > 0): amplification has no proof; use random:Q"
            raise InputError("participation", str(part), remedy)
        return amplified_curve(s, part.rate, law, t.copies * sigma**-2.0)
    if t.remembers and s.monotone:
        remedy = "without a declared smoothness a deviation grows whoever takes part; random:Q does not count it"
        raise InputError("participation", str(part), f"{remedy}; use all or cap:N")
    to_norm, _ = s.to_norm(law.norm)
    return random_curve(
        q=part.rate,
        added=to_norm * s.added(t.remembers),
        keep=(s.contraction if t.remembers else 1.0) * t.carry,
        copies=t.copies,
        sigma=sigma,
        noise=law,
        final=final / to_norm,  # an l2 distance, x is in the norm of the messages' noise
    )


def _said(asked: Question) -> Account:
    """The blank answer of proofs about messages, with what is said of their noise."""
    law, on_grid = asked.scheme.law, asked.sensitivity.rounding is not None
    shown = f"{law.words} noise in the messages"
    if not law.on_grid and on_grid:
        shown += ", rounded to the grid"
    if isinstance(asked.release.release, words.Centroid):
        shown += f"; {'discrete ' if on_grid else ''}Gaussian shares in the release"
    return asked.blank(law=shown, assumptions=_about_noise(asked.scheme, asked.release.release, asked.secure))


def _about_noise(scheme: Scheme, release: words.Release, secure: bool) -> tuple[str, ...]:
    law, masked = scheme.law, "secure" if secure else "plain"
    found = [f"{masked} aggregation: the own server sees {seen(scheme, secure)}; noise is drawn once per round"]
    if scheme.exchange is Exchange.AVERAGE:
        found.append(
            "a trusted centre, or a secure sum over all servers, shows the noisy mean and nothing else; nobody knows "
            "its noise"
        )
    if law.on_grid:
        found.append(
            "discrete noise on an integer grid; the sampler is within 2^-108 of it in total variation "
            "(confide.laws.noise): N draws add (1 + e^epsilon) N 2^-108 to delta, which is paid from this delta"
        )
    else:
        found.append(REAL_NUMBERS)
    if law.on_grid and not law.pure and isinstance(release, words.Centroid):
        found.append(
            "release: of shares at least 2 quanta wide, whose sum is as good as discrete Gaussian (rho grows by less "
            "than 1e-15 P M); for narrower ones see confide.privacy.sum_noise.release_rho"
        )
    return tuple(found)


def by_general(asked: Question) -> Bound:
    """By the rows of the scheme, which needs no closed form; what has no proof is refused."""
    scheme, s, release, threat, P = asked.scheme, asked.sensitivity, asked.release, asked.threat, asked.P
    without = f"{scheme.name!r} has no closed form, and the general accountant knows"
    if threat.own_server:
        why = f"leak: {own_server(scheme, asked.secure, asked.active)}"
        return Leaked(asked.blank(leak=True, assumptions=(why,)))
    if P > 1 and scheme.places - {Place.CLIENT} == {Place.AROUND}:
        why = (
            "leak: the noise of messages cancels at each receiver, so that it, and whoever sees what it is sent, "
            "learns the exact weighted sum of its neighbours' models"
        )
        return Leaked(asked.blank(leak=True, assumptions=(why,)))
    if not scheme.law.normal:
        raise InputError("noise", str(scheme.law), f"{without} continuous Gaussian noise alone")
    if s.rounding is not None:
        raise InputError("algorithm.arithmetic", "fixed", f"{without} real numbers alone; use float")
    if s.participation.by_chance:
        raise InputError("participation", str(s.participation), f"{without} all and cap:N alone")
    if P * asked.rounds**2 > LONGEST:
        most = math.isqrt(LONGEST // P)
        raise InputError("rounds", asked.rounds, f"{without} at most {most} rounds of {P} servers")
    check_apart(scheme, asked.graphs)
    wirings = rounds_of(scheme, [asked.graphs[j % len(asked.graphs)] for j in range(asked.rounds)])
    targets_of = dict[frozenset[int], list[int]]()
    for p in range(P):
        others = against(threat, asked.graphs, p)
        if p not in others:
            targets_of.setdefault(others, []).append(p)
    found: list[Bound] = []
    for others, looked_at in targets_of.items():
        for p, e in zip(looked_at, expose_each(wirings, looked_at, others), strict=True):
            if e.others >= TOLERANCE and not e.leak:
                remedy = f"other servers' models tell of server {p} beyond all messages; no bound is proven"
                raise InputError("scheme.name", scheme.name, remedy)
            hidden = math.inf
            if isinstance(release.release, words.Centroid):
                hidden = P * release.hidden(P, known_shares(threat, asked.graphs, p))
            found.append(_end(e, p, asked, hidden))
    return Worst(found, False, scheme.sigma)


def _end(e: Exposure, p: int, asked: Question, hidden: float) -> Bound:
    """One target, its models counted where they are shown; `hidden`: noise on the sum of all of them."""
    threat, release, blank = asked.threat, asked.release.release, replace(_said(asked), target=p)
    keeps = bool(np.any(np.abs(e.kept) > 1e-12))
    shown = threat.own_client or release.shows_models
    if keeps and shown and e.revealed:
        remedy = "noise that stays hidden is a part of the model that is shown; no bound is proven"
        raise InputError("threat", f"{threat}, release {release}", remedy)
    if e.leak or (keeps and (shown or hidden == 0.0)):
        why = "leak: the view determines a noiseless function of the data"
        return Leaked(replace(blank, leak=True, assumptions=(why, *blank.assumptions)))
    found = looked_at(e, asked.sensitivity, blank, hidden if keeps else math.inf)
    return replace(found, exact=found.exact and asked.heard(p))


def looked_at(e: Exposure, s: Sensitivity, blank: Account, hidden: float = math.inf) -> Course:
    """One target from all looks at it; `hidden`: the noise on a last look at its model."""
    remembers = bool(np.any(np.abs(e.kept) > 1e-12))
    deltas = s.deltas(lambda j, before: np.asarray(np.abs(e.kept[j - 1, :j]) @ before), len(e.kept), remembers)
    # Rounds outside a cap count as present in the cross terms: which rounds are seen together is not known.
    whole = float(np.sum(s.charged(deltas * (np.abs(e.S) @ deltas), remembers)))
    looks, seen_so_far, after = np.abs(e.looks), np.zeros(len(deltas)), [0.0]  # mu^2, every look at its worst
    for j, (first, end) in enumerate(pairwise((0, *e.ends)), 1):
        seen_so_far += looks[first:end].T @ (looks[first:end] @ deltas)
        after.append(max(after[-1], float(np.sum(s.charged((deltas * seen_so_far)[:j], remembers)))))
    after = [*np.minimum(after[:-1], whole).tolist(), whole]  # fewer rounds tell no more than all of them
    last = np.array([np.abs(e.kept[j, : j + 1]) @ deltas[: j + 1] for j in range(len(deltas))])
    notes = [*blank.assumptions, *s.assumptions(remembers)]
    if e.revealed:
        notes.append(f"{e.revealed} hidden noises were given to the adversary, so that updates may be adaptive")
    attained = isinstance(s.participation, words.Always) and s.attained(remembers) and not e.revealed
    return Course(
        blank=replace(blank, assumptions=tuple(notes)),
        law=GAUSSIAN,
        deltas=deltas,
        spent=Spent(np.diff(after) / 2.0),
        copies=np.ones(len(deltas)),
        released=(last / hidden) ** 2 / 2.0,
        dim=s.dim,
        exact=attained and bool(np.all(e.S >= -1e-12)),
    )
