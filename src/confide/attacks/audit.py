"""The audit: what a run prints about its privacy, and what its own round gives away.

Every number of the statement gets the lower bound of an explicit attack beside it: on the config's own algorithm,
level, adjacency, participation, arithmetic and release, with worst-case data of the audit's own (`worlds`); the run's
data are never read. Attack and account are about the same rounds. The bounds are exact calculations (`lower`); only how
loud the drawn noise is is measured, at a risk of RISK to call a true statement contradicted.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from confide.attacks import lower
from confide.attacks.attacks import Attack, demonstrations
from confide.attacks.worlds import (
    RISK,
    Client,
    Gaps,
    Pair,
    Side,
    Unit,
    client_loudness,
    drive,
    heard,
    loudness,
    pairs,
    release_loudness,
    units,
)
from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.laws.conversion import gaussian_epsilon
from confide.plans import words
from confide.plans.config import Config, Experiment, named_as_in_config
from confide.privacy.course import Account
from confide.privacy.price import Price, price_run
from confide.privacy.reveal import against
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import Statement, rounded_up
from confide.rounds.schemes import Exchange, Place

PATTERNS: Final = 10  # rounds of an attack on hidden participation that goes through every pattern of it
SLACK: Final = 1e-6  # of floating point, relative
COARSE: Final = 1e-3  # standard deviations: a grid below this is as good as none
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One adversary of the statement and the best attack on what is said about it.

    Attributes:
        rounds: that were attacked: those of the run, or the first, whose model is public.
        printed: epsilon of so many rounds; None where the statement promises nothing.
        attained: a lower bound of the true epsilon; None where no attack is known, infinite where the view is certain.
        pure: (printed, attained) at delta = 0, of Laplace noise.
        printed_for_the_run: epsilon of the whole run.
    """

    adversary: str
    rounds: int
    printed: float | None
    attained: float | None
    how: str
    printed_for_the_run: float | None
    pure: tuple[float, float] | None = None

    @property
    def excess(self) -> float:
        """Attained over printed."""
        if self.printed is None or self.attained is None:
            return -1.0
        both = [(self.printed, self.attained), *([self.pure] if self.pure else [])]
        return max(low / high if high else math.inf if low else 0.0 for high, low in both)

    @property
    def verdict(self) -> str:
        if self.printed is None:
            return "no promise"
        if self.attained is None:
            return "not decided"
        return "holds" if self.excess <= 1.0 + SLACK else "CONTRADICTED"

    def to_dict(self) -> dict[str, Any]:
        certain = self.attained == math.inf
        return asdict(self) | {
            "attained": None if certain else self.attained,
            "certain": certain,
            "verdict": self.verdict,
            "pure": None if self.pure is None else [x if math.isfinite(x) else None for x in self.pure],
        }


@dataclass(frozen=True)
class AuditReport:
    """`ok` when no lower bound contradicts what is printed."""

    rows: tuple[Row, ...]
    attacks: tuple[Attack, ...]
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        return all(r.verdict != "CONTRADICTED" for r in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "ok": self.ok,
            "rows": [r.to_dict() for r in self.rows],
            "attacks": [a.to_dict() for a in self.attacks],
        }

    def __str__(self) -> str:
        def line(*cells: str) -> str:
            who, rounds, printed, attained, verdict, how = cells
            return f"{who:22} {rounds:>6} {printed:>9} {attained:>9} {verdict:12} {how}".rstrip()

        said = [line("adversary", "rounds", "printed", "attained", "verdict", "attacked by"), "-" * 80]
        said += [
            line(r.adversary, str(r.rounds), _short(r.printed, rounded_up), _short(r.attained), r.verdict, r.how)
            for r in self.rows
        ]
        said += ["", *(f"note: {n}" for n in self.notes), "", "what schemes give away, on data made for it:"]
        said += [f"  {a.name:33} {a.words}" for a in self.attacks]
        wrong = [r.adversary for r in self.rows if r.verdict == "CONTRADICTED"]
        end = "no printed epsilon is contradicted"
        if wrong:
            end = f"THE PRINTED ACCOUNT IS CONTRADICTED about {', '.join(wrong)}"
        return "\n".join([*said, "", f"{end} ({self.seconds:.1f} s)"])


class Found(NamedTuple):
    """A lower bound of epsilon, and for how many rounds."""

    rounds: int
    epsilon: float
    pure: float | None = None


Key = tuple[str, int]  # the kind of an adversary, and which of that kind it is in the statement


@dataclass(frozen=True)
class Bench:
    """One run, what it prints, and attacks on that; `kept` holds what several rows share."""

    e: Experiment
    price: Price
    rounds: int
    kept: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self.kept:
            self.kept[key] = make()
        return cast(T, self.kept[key])

    def statement(self, rounds: int) -> Statement:
        return self.once(("statement", rounds), partial(self.price.statement, rounds))

    def said(self, rounds: int) -> dict[Key, Account]:
        """What a run of so many rounds prints, adversary by adversary."""
        found: dict[Key, Account] = {}
        for account in self.statement(rounds).accounts:
            kind = words.threat(account.threat).name
            found[kind, sum(k == kind for k, _ in found)] = account
        return found

    def row(self, key: Key) -> Row:
        """The attack that goes furthest beyond the account, or the nearest to that of the whole run."""
        said, (kind, n) = self.said(self.rounds)[key], key
        # Servers and clients receive a release whatever is said about them; who listens on links may not.
        released = bool(self.price.releases) and (kind != words.Links.name or n > 0)
        name = said.threat + (" + release" if released else "")
        rows = [Row(name, self.rounds, said.epsilon, None, "-", said.epsilon)]
        threat = words.threat(said.threat)
        honest = min(set(range(self.e.graph[0].P)) - words.colluders(threat), default=0)
        target = honest if said.target is None else said.target
        for how, x in self.attacks(threat, target, released) if not said.leak else ():
            account = self.said(x.rounds).get(key)
            if account is not None and not account.leak:
                pure = None if x.pure is None or account.epsilon_pure is None else (account.epsilon_pure, x.pure)
                rows.append(Row(name, x.rounds, account.epsilon, x.epsilon, how, said.epsilon, pure))
        wrong = [r for r in rows if r.verdict == "CONTRADICTED"]
        return max(wrong or rows, key=lambda r: r.excess if wrong else (r.attained is not None, r.rounds, r.excess))

    def attacks(self, threat: words.Threat, p: int, released: bool) -> Iterator[tuple[str, Found]]:
        s = self.sensitivity
        for unit in units(self.e, p):
            for pair in pairs(self.e, s, unit):
                if threat.own_server:
                    found = self.from_sums(unit, pair)
                elif s.participation.by_chance:
                    found = self.by_chance(threat, unit, pair)
                else:
                    found = self.from_messages(threat, unit, pair, released)
                if found is not None:
                    yield pair.name, found

    # ---- what is seen

    def gaps(self, unit: Unit, pair: Pair, rounds: int, public: bool = False) -> Gaps:
        """At equal messages, when the target takes part in every round."""
        make = partial(drive, self.e, unit, Side(pair.one), Side(pair.other), rounds, public=public)
        return self.once((unit, pair.name, rounds, public), make)

    def looks(self, threat: words.Threat, unit: Unit, rounds: int) -> list[Floats]:
        """`heard` in each round; noise that is drawn too softly tells more."""
        graphs, scheme = self.e.graph, self.e.algorithm.scheme
        around = against(threat, graphs, unit.p)
        quiet = self.once(("loudness", unit.p), partial(loudness, self.e, self.sensitivity, unit))
        turns = [self.once((g.name, j, unit.p, around), partial(heard, scheme, g, unit.p, around)) / quiet
                 for j, g in enumerate(graphs)]  # fmt: skip
        return [turns[j % len(turns)] for j in range(rounds)]

    @property
    def sensitivity(self) -> Sensitivity:
        if self.price.sensitivity is None:
            raise InputError("problem", self.e.problem.spec.get("name"), "has no price: nothing to attack")
        return self.price.sensitivity

    @property
    def L(self) -> int:
        return self.e.algorithm.sampled

    @property
    def quantum(self) -> float:
        alg = self.e.algorithm
        return 2.0**-alg.fraction_bits / alg.sampled if alg.arithmetic == "fixed" else 0.0

    def inside(self, unit: Unit, known: int = 0) -> float:
        """Standard deviation on psi of the clients' own noises, but for those of `known` clients."""
        alg = self.e.algorithm
        if alg.sums is not None:
            return alg.sums.share * math.sqrt(self.L - known)
        if not alg.scheme.sigma_client:
            return 0.0
        quiet = self.once(("clients", unit.p), partial(client_loudness, self.e, self.sensitivity, unit))
        return quiet * alg.scheme.sigma_client / self.L * math.sqrt(self.L - known)

    def moved(self, gaps: Floats) -> Floats:
        """The gaps of each round; on a grid, where roundings depend on the model, less what they may be off by."""
        if not self.quantum:
            return gaps
        size = np.linalg.norm(gaps, axis=1, keepdims=True)
        off = 2.0 * self.quantum * np.arange(len(gaps))[:, None] * np.sqrt((gaps != 0.0).sum(axis=1, keepdims=True))
        return np.asarray(gaps * np.maximum(1.0 - off / np.maximum(size, 1e-300), 0.0))

    def gaussian(self, mu: float, terms: int, quanta: float) -> float:
        """Of Gaussian noises mu apart of which so many terms are rounded, by `quanta` standard deviations in all."""
        if mu > 1e6:
            return math.inf
        return gaussian_epsilon(max(0.0, mu - math.sqrt(terms) * quanta), self.price.plan.privacy.delta)

    # ---- attacks

    def from_messages(self, threat: words.Threat, unit: Unit, pair: Pair, released: bool) -> Found | None:
        """The target takes part in every round, which is no secret."""
        scheme, noise = self.e.algorithm.scheme, self.inside(unit)
        gaps = self.gaps(unit, pair, self.rounds if pair.steady else 1)
        if (noise and gaps.kept.any()) or Place.OWN in scheme.places:
            gaps = self.gaps(unit, pair, 1)  # hidden noise is carried on: only the first round is known
        rounds = len(gaps.psi)
        local = released and self.price.plan.privacy.release.shows_models
        model = threat.own_client or local
        if not np.isfinite(gaps.psi).all() or (model and not noise and gaps.kept.any()):
            return Found(rounds, math.inf)
        moved, seen = self.moved(gaps.psi), self.looks(threat, unit, rounds)
        # The clients' noise is in messages and release alike: the messages alone are attacked.
        mean = self.released(threat, unit, gaps) if released and not noise else 0.0
        if not scheme.law.normal:
            return None if noise else self.laplace(moved, seen, mean, released)
        snr = np.array([1.0 / math.hypot(1.0 / np.linalg.norm(x), noise) if x.any() else 0.0 for x in seen])
        mu = math.hypot(float(np.linalg.norm(np.linalg.norm(moved, axis=1) * snr)), mean)
        roundings = self.quantum * (1 + (self.L if noise else 0)) * float(snr.max())
        terms = int(np.count_nonzero(moved)) + (int(np.count_nonzero(gaps.kept[-1])) if mean else 0)
        epsilon = self.gaussian(mu, terms, roundings)
        of_servers = scheme.exchange == Exchange.GRAPH and not scheme.by_link
        if self.quantum and rounds == 1 and snr[0] and not noise and of_servers:
            steps = np.rint(np.abs(moved[0]) / self.quantum).astype(np.int64)
            sigma, whole = 1.0 / snr[0] / self.quantum, (int(steps.sum()), int(np.count_nonzero(steps)))
            epsilon = max(epsilon, lower.rounded_epsilon(*whole, sigma, self.price.plan.privacy.delta))
        return Found(rounds, epsilon)

    def laplace(self, moved: Floats, seen: list[Floats], mean: float, released: bool) -> Found | None:
        each = [np.outer(g, x).ravel() * math.sqrt(2.0) for g, x in zip(moved, seen, strict=True)]
        ratios = np.abs(np.concatenate(each))
        if not np.isfinite(ratios).all() or mean == math.inf:
            return Found(len(moved), math.inf)
        if self.quantum * math.sqrt(2.0) * max(float(x.max(initial=0.0)) for x in seen) > COARSE:
            return None

        def bound() -> float:
            parts = lower.laplace_looks(ratios) + ([lower.gaussian_look(mean)] if mean else [])
            return lower.epsilon_of(parts, self.price.plan.privacy.delta)

        epsilon = self.once((ratios.tobytes(), mean), bound)
        return Found(len(moved), epsilon, None if released else float(ratios.sum()))

    def released(self, threat: words.Threat, unit: Unit, gaps: Gaps) -> float:
        """How far the mean of the final models moves, in standard deviations of the noise that is not known."""
        graphs, p = self.e.graph, self.price.plan.privacy
        if not isinstance(p.release, words.Centroid):
            return 0.0
        P, moved = graphs[0].P, float(np.linalg.norm(gaps.kept[-1])) / graphs[0].P

        feared = max(len(against(p.threat, graphs, q)) for q in range(P))
        share = p.release.sigma / math.sqrt(P - min(max(1, feared), P - 1))  # of one server, on the mean
        all_of_it = share * math.sqrt(P)
        quiet = self.once("release", partial(release_loudness, self.price, self.e.seed, all_of_it))
        hidden = quiet * share * math.sqrt(P - len(against(threat, graphs, unit.p)))
        return moved / hidden if hidden else math.inf if moved else 0.0

    def by_chance(self, threat: words.Threat, unit: Unit, pair: Pair) -> Found | None:
        """The target is drawn by chance, and it is a secret in which rounds."""
        e, noise, first = self.e, self.inside(unit), self.gaps(unit, pair, 1)
        if not np.isfinite(first.psi).all():
            return Found(1, math.inf)
        absent = e.algorithm.dropout or e.algorithm.failures.unit or e.algorithm.failures.units
        if not e.algorithm.scheme.law.normal or absent:
            return None
        # Where nothing but the pushes tells who was drawn, every round is like the first.
        tells = self.sensitivity.clip == "example" and e.problem.model.rho > 0.0 and len(set(unit.E)) > 1
        alike, remembers = pair.steady and not tells, bool(first.kept.any())
        patterns = alike and remembers and not noise  # of rounds: the last message remembers them
        at = range(1, min(self.rounds, PATTERNS) + 1 if patterns else 2)
        rounds = len(at) if patterns else self.rounds if alike and not remembers else 1
        effects = [np.array([self.effect(unit, c, j, len(at)) for j in at]) for c in (pair.one, pair.other)]
        axis = (effects[0] - effects[1]).sum(axis=0)
        axis /= np.linalg.norm(axis) or 1.0
        q = self.L / int(e.problem.federation.K[unit.p])
        drawn = np.array(list(itertools.product((0.0, 1.0), repeat=len(at))))
        chances = np.prod(np.where(drawn > 0.0, q, 1.0 - q), axis=1)
        looks = self.looks(threat, unit, rounds)[-1 if patterns else 0 :]
        snr = Counter(1.0 / math.hypot(1.0 / np.linalg.norm(x), noise) if x.any() else 0.0 for x in looks)
        if self.quantum * max(snr) > COARSE:
            return None
        sides = []
        for effect in effects:
            means, place = np.unique(np.round(drawn @ (effect @ axis), 9), return_inverse=True)
            sides.append([*zip(np.bincount(place, chances).tolist(), means.tolist(), strict=True)])

        def bound(one: lower.Mixture, other: lower.Mixture) -> float:
            parts = [lower.mixture_look(one, other, n, x) for x, n in snr.items()]
            return lower.epsilon_of(parts, self.price.plan.privacy.delta)

        key = (tuple(map(tuple, sides)), tuple(snr.items()))
        return Found(rounds, self.once(key, lambda: max(bound(*sides), bound(*sides[::-1]))))

    def effect(self, unit: Unit, clients: list[Client], at: int, rounds: int) -> Floats:
        """What it adds to the last psi that the target was drawn in round `at`, and in no other, at equal messages."""
        once, never = Side(clients, lambda i: i == at), Side(clients, lambda i: False)
        return np.asarray(drive(self.e, unit, once, never, rounds).psi[-1])

    def from_sums(self, unit: Unit, pair: Pair) -> Found | None:
        """The own server: it sees the noisy sum of every round, or each noisy update, at a model that it knows."""
        secure, part, law = self.e.algorithm.sums, self.sensitivity.participation, self.e.algorithm.scheme.law
        if secure is not None:
            known = secure.parameters.corrupted
        else:  # it sets aside what does not come from the target
            known = 0 if self.sensitivity.level is words.Level.UNIT else self.L - 1
        noise = self.inside(unit, known)
        rounds = self.rounds if pair.steady else 1
        gaps = self.gaps(unit, pair, 1 if part.by_chance else rounds, public=True).psi
        if not noise or not np.isfinite(gaps).all():
            return Found(rounds, math.inf)
        if secure is None and not law.normal:
            alone = known == self.L - 1 and not part.by_chance
            return self.laplace(gaps, [np.array([1.0 / noise])] * len(gaps), 0.0, False) if alone else None
        roundings, sizes = (self.L + 1) * self.quantum / noise, np.linalg.norm(self.moved(gaps), axis=1)
        if not part.by_chance:
            mu = float(np.linalg.norm(sizes)) / noise
            return Found(rounds, self.gaussian(mu, int(np.count_nonzero(gaps)), roundings))
        if self.e.algorithm.dropout or self.e.algorithm.failures:
            return None
        q, mu = self.L / int(self.e.problem.federation.K[unit.p]), max(0.0, float(sizes[0]) / noise - roundings)
        return Found(rounds, lower.counted_epsilon(q, rounds, mu, self.price.plan.privacy.delta))


def audit(config: Config, *, announce: Callable[[str], None] = lambda what: None) -> AuditReport:
    """Attack what a run of this config would print about its privacy; `announce` is told what is under way."""
    started, e = time.perf_counter(), config.build()
    if e.graph[0].P == 1:
        raise InputError("graph.topology", config.graph.topology, "one server sends no messages: nothing to attack")
    rows, notes = rows_of(e, announce)
    announce("what schemes give away")
    shown = demonstrations(e.graph, e.algorithm.scheme.law, e.seed)
    return AuditReport(rows, tuple(shown), notes, time.perf_counter() - started)


def rows_of(
    e: Experiment, announce: Callable[[str], None] = lambda what: None
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """A row for every adversary of the statement, and what to know about them."""
    if e.privacy is None:
        return (), ("the run prints no epsilon: without algorithm.clip nothing bounds an update",)
    with named_as_in_config():
        price = price_run(e.problem, e.graph, e.algorithm, e.rounds, e.seed, e.privacy)
        bench, rows = Bench(e, price, price.affordable(e.rounds)), []
        for key, account in bench.said(bench.rounds).items():
            announce(f"attacking what is said about {account.threat}")
            rows.append(bench.row(key))
    return tuple(rows), tuple(_notes(bench))


def _notes(bench: Bench) -> list[str]:
    s, p = bench.sensitivity, bench.price.plan.privacy
    found = [
        f"{s.level} level, {s.adjacency}, participation {s.participation}, proof {s.proof}, delta {p.delta:g}",
        "printed is what a run of so many rounds says, attained what its own round gives away on",
        "worst-case data of the audit's own: a smaller epsilon would be false",
        f"noise of messages and clients was measured, at a risk of {RISK:g} to think it too soft",
    ]
    return found + [f"no statement against {who}: {why}" for who, why in bench.statement(bench.rounds).refused]


def _short(value: float | None, shown: Callable[[float], str] = "{:.4g}".format) -> str:
    return "-" if value is None else "certain" if value == math.inf else shown(value)
