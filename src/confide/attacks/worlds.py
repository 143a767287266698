"""Two neighbouring worlds: data as bad as can be, driven through the reference round at equal messages.

Both worlds run the config's own round (`Reference.round`); in the second one the noise of the attacked server is what
makes its messages those of the first. Given the messages, all that is left of the data is how far psi moved, round by
round, and what the server keeps of that in its state: the gaps. No accountant is asked.

Rows of `steady` pairs push with the whole clip bound whatever the model, so that a linear model's round is affine and
its gaps are the same for every message: the view is one of two Gaussians (or Laplaces) and a lower bound of epsilon
needs no sampling. The gaps of other pairs depend on the model, which is public before the first round only: they count
for one round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.engines.release import Releasing, seeded
from confide.graph.graph import Graph
from confide.laws.law import Conversion, Law, Norm
from confide.plans import words
from confide.plans.config import Experiment
from confide.privacy.closed_forms import covers
from confide.privacy.price import Price
from confide.privacy.sensitivity import Sensitivity
from confide.problems.federation import Federation
from confide.problems.models import Linear, Model, Regression, Softmax
from confide.problems.problem import Problem
from confide.rounds.arithmetic import FloatArithmetic, State
from confide.rounds.combine import publish
from confide.rounds.noise import NoiseSource
from confide.rounds.reference import Reference, prepare
from confide.rounds.schemes import Exchange, Scheme, links

Row = tuple[Floats, float]  # features and label
Client = list[Row]
HUGE: Final = 1e200  # of a row: its square is no number
FLAT: Final = 1e-3  # features of a linear row whose gradient does not notice the model
ROUNDED: Final = 1e-12  # of a number: what floating point leaves of two equal ones
MEASURED: Final = 50  # rounds in which noise is measured
WIDE: Final = 4000  # coordinates in which the noise of a release is measured
RISK: Final = 1e-9  # that it is louder than it then seems


@dataclass(frozen=True)
class World(Reference):
    """The reference with one attacked unit, whose first client is drawn in the rounds that the attack asks for.

    In other rounds one more client takes its place; the other units give nothing.
    """

    target: int = 0
    there: Callable[[int], bool] = field(default=lambda i: True)
    last: dict[str, State] = field(default_factory=dict)  # psi of the target in the round under way

    def sample(self, i: int, p: int) -> list[int]:
        first = 0 if self.there(i) else 1
        return list(range(first, first + self.algorithm.sampled))

    draw = sample

    def adapt(self, i: int, p: int, w: State, clients: Sequence[int]) -> State:
        if p != self.target:
            return w.copy()
        self.last["psi"] = super().adapt(i, p, w, clients)
        return self.last["psi"]


class Gaps(NamedTuple):
    """What the data of the target move at equal messages, in numbers: (rounds, M) each."""

    psi: Floats  # zero where the unit sent nothing
    kept: Floats  # of the state after the round


class Pair(NamedTuple):
    """Two neighbouring data sets of a unit, its clients' rows in either."""

    name: str
    one: list[Client]
    other: list[Client]
    steady: bool = False


@dataclass(frozen=True)
class Unit:
    """The attacked unit: its server, and who its clients are in the config, the target first."""

    p: int
    E: tuple[int, ...]
    batch: tuple[int, ...]


def units(e: Experiment, p: int) -> list[Unit]:
    """Targets worth attacking in unit p: who takes the most local steps, and who has the smallest batches."""
    E, batch = e.algorithm.settle(e.problem.federation, e.seed)
    here = slice(*e.problem.federation.unit_offsets[p : p + 2].tolist())
    E, batch = E[here], batch[here]
    found = []
    for k in dict.fromkeys((int(np.argmax(E)), int(np.argmin(batch)))):
        others = [j for j in range(len(E)) if j != k] or [k]
        order = [k, *(others[j % len(others)] for j in range(e.algorithm.sampled))]
        found.append(Unit(p, tuple(E[order].tolist()), tuple(batch[order].tolist())))
    return found


class Side(NamedTuple):
    """One of the two worlds: the data of the unit's clients, and in which rounds the target is drawn."""

    clients: list[Client]
    there: Callable[[int], bool] = lambda i: True


def drive(
    e: Experiment,
    unit: Unit,
    one: Side,
    other: Side,
    rounds: int,
    *,
    public: bool = False,
    noise: NoiseSource | None = None,
) -> Gaps:
    """Both worlds for so many rounds.

    Args:
        public: the model handed out is known too, as it is to the own server: the second world goes on from it.
        noise: of the first world's messages; none by default, for steady gaps do not depend on it.
    """
    P = e.graph[0].P

    def none(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        return np.zeros(size, w.dtype)

    given = noise or none

    def matching(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        same = given(purpose, ids, law, sigma, size)
        if purpose is Purpose.NETWORK_NOISE:
            return same + (first.last["psi"] - second.last["psi"]) / P
        sent = purpose is Purpose.SERVER_NOISE or (purpose is Purpose.LINK_NOISE and ids[1] != ids[2])
        return same + (first.last["psi"] - second.last["psi"]) if sent and ids[1] == unit.p else same

    first, second = world(e, unit, one, rounds, given), world(e, unit, other, rounds, matching)
    w = v = first.start(np.tile(e.problem.start, (P, 1)))
    value, psi, kept = first.arithmetic.value, [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(1, rounds + 1):
            first.last.clear()
            here, there = first.round(i, w), second.round(i, w if public else v)
            moved = value(here.psi[unit.p]) - value(there.psi[unit.p])
            psi.append(moved if first.last else 0.0 * moved)  # an absent unit sends nothing
            w, v = here.w, there.w
            left = (value(w) - value(v)).sum(axis=0)
            kept.append(np.where(np.abs(left) <= ROUNDED * np.abs(value(here.psi)).max(), 0.0, left))
    return Gaps(np.array(psi), np.array(kept))


def world(e: Experiment, unit: Unit, side: Side, rounds: int, noise: NoiseSource | None = None) -> World:
    """The config's algorithm on these data; the clients of units that are not attacked have none."""
    P, L = e.graph[0].P, e.algorithm.sampled
    nothing = row(e.problem.model, np.zeros(e.problem.federation.M), 0.0)
    every = [side.clients if p == unit.p else [[nothing]] * L for p in range(P)]
    federation = Federation.from_clients(
        [[(np.array([x for x, _ in c]), np.array([d for _, d in c])) for c in u] for u in every]
    )
    E, batch = ([x for p in range(P) for x in (of if p == unit.p else (1,) * L)] for of in (unit.E, unit.batch))
    algorithm = replace(e.algorithm, local_steps=E, batch=batch)
    cap = None if e.privacy is None else words.cap(e.privacy.participation)
    made = prepare(Problem(federation, e.problem.model), e.graph, algorithm, rounds, e.seed, noise, cap)(0)
    known = {f.name: getattr(made, f.name) for f in fields(made) if f.init}
    return World(**known, target=unit.p, there=side.there)


# ---- data as bad as can be


def direction(e: Experiment) -> Floats:
    """Of all pushes: along one axis, or all of them where Laplace noise meets an l2 clip."""
    M, clip = e.problem.federation.M, e.algorithm.clip
    spread = e.algorithm.scheme.law.norm is Norm.L1 and clip is not None and clip.norm == "l2"
    return np.full(M, M**-0.5) if spread else np.eye(M)[0]


def row(model: Model, v: Floats, size: float) -> Row:
    """An example whose gradient at w = 0 is -size v; a linear one's hardly changes with the model.

    A softmax one's is -size (e_0 - 1/C) v', made to have norm size.
    """
    if isinstance(model, Softmax):
        return size / math.sqrt(1.0 - 1.0 / model.classes) * v, 0.0
    if isinstance(model, Linear):
        return FLAT * v, size / (2.0 * FLAT)
    return 2.0 * abs(size) * v, math.copysign(1.0, size)


def pairs(e: Experiment, s: Sensitivity, unit: Unit) -> list[Pair]:
    """The worst cases: everybody else pushes against the target, with all that the clip lets through."""
    model, v, b, B = e.problem.model, direction(e), unit.batch[0], s.bound
    if not isinstance(model, Regression):
        remedy = "the audit makes the worst data of linear, logistic and softmax models alone; audit one of these"
        raise InputError("problem.model", e.problem.spec.get("model", type(model).__name__), remedy)
    linear = isinstance(model, Linear)
    # The longest features that a declared smoothness allows.
    most = math.inf if s.smoothness is None else math.sqrt((s.smoothness - 2.0 * model.rho) / model.curvature_bound)
    strong = 1e90 if linear else min(1e3 * B, most / 2.0)
    push, pull, nothing = row(model, v, strong), row(model, v, -strong), row(model, 0.0 * v, 0.0)
    gone = nothing if s.adjacency is words.Adjacency.ZERO_OUT else pull

    def pair(name: str, one: Row, other: Row, rest: Sequence[Row] | None = None, steady: bool = False) -> Pair:
        """The target's example (beside `rest`), its whole data, or those of all clients of its unit."""
        if s.level is words.Level.EXAMPLE:
            rest = [push] * (b - 1) if rest is None else list(rest)
            sides = [[[x, *rest], *([pull] * n for n in unit.batch[1:])] for x in (one, other)]
        elif s.level is words.Level.CLIENT:
            sides = [[[x] * b, *([pull] * n for n in unit.batch[1:])] for x in (one, other)]
        else:
            sides = [[[x] * n for n in unit.batch] for x in (one, other)]
        return Pair(name, sides[0], sides[1], steady)

    # A whole update is clipped with the decay in it, which stays where the data are taken away.
    affine = linear and not (s.clip == "update" and s.adjacency is words.Adjacency.ZERO_OUT and model.rho > 0.0)
    found = [pair("steady pushes", push, gone, steady=affine)]
    found.append(pair("a row of 1e200", (v * min(HUGE, most), HUGE if linear else 1.0), gone))
    if max(unit.E) > 1 and linear:
        # Springs: examples whose gradients turn round when the model moves a little, for which one example is enough.
        eta = s.step / unit.E[0]
        for name, stiff in (("stiff springs", 1e7), ("soft springs", 1.5)):
            size = min(math.sqrt(stiff / eta), most)
            if s.level is words.Level.EXAMPLE:
                lean = [row(model, v, -B / 2.0)] if s.adjacency is words.Adjacency.ZERO_OUT and b > 1 else []
                found.append(pair(name, push, gone, [*lean, *[(size * v, 0.0)] * (b - 1 - len(lean))]))
            else:
                one, other = ((size * v, sign * size * 1e-6 * eta * B) for sign in (1.0, -1.0))
                found.append(pair(name, one, nothing if gone is nothing else other))
    if e.algorithm.arithmetic == "fixed" and s.level is words.Level.EXAMPLE and b > 1:
        found += _edge(e, s, unit, pair, nothing if gone is nothing else None)
    return found


def _edge(e: Experiment, s: Sensitivity, unit: Unit, pair: Callable[..., Pair], nothing: Row | None) -> list[Pair]:
    """The other examples bring every coordinate of the update to where truncation jumps by a quantum, and one example
    decides to which side it falls."""
    b, M, quantum = unit.batch[0], e.problem.federation.M, 2.0**-e.algorithm.fraction_bits
    most = s.step * s.bound * (b - 1) / b
    if quantum > most / 2.0:
        return []
    n = min(M, int((most / 2.0 / quantum) ** 2))
    v = np.where(np.arange(M) < n, n**-0.5, 0.0)
    one, other = row(e.problem.model, v, s.bound), nothing or row(e.problem.model, v, -s.bound)
    middle = quantum * math.sqrt(n) - (s.step * s.bound / b / 2.0 if nothing else 0.0)
    rest = row(e.problem.model, v, middle / most * s.bound)
    return [pair("edge of the grid", one, other, [rest] * (b - 1))]


# ---- what is heard of them


def heard(scheme: Scheme, graph: Graph, p: int, colluders: frozenset[int]) -> Floats:
    """A round's messages as independent looks at psi of server p, in units of their noise's standard deviation.

    By the code that publishes, on single noises: those that colluders drew or share are known to them.
    """
    if not covers(scheme):
        raise InputError(
            "scheme.name", scheme.name, "has no closed form, and the audit has attacks on those that have one"
        )
    arith, present, names = FloatArithmetic(1), np.ones(graph.P, dtype=bool), list[tuple[Purpose, tuple[int, ...]]]()

    def silent(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> Floats:
        names.append((purpose, ids))
        return np.zeros(1)

    def impulse(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> Floats:
        owners = ids if purpose is Purpose.PAIR_NOISE else ids[:1]
        known = not colluders.isdisjoint(owners)
        return np.where(np.arange(len(names)) == names.index((purpose, ids)), 0.0 if known else sigma, 0.0)

    signal = publish(scheme, graph, np.eye(graph.P)[:, p : p + 1], silent, arith, present).sent[:, 0]
    noise = publish(scheme, graph, np.zeros((graph.P, len(names))), impulse, arith, present).sent
    if scheme.exchange == Exchange.GRAPH:
        sender = links(graph)[0] if scheme.by_link else np.arange(graph.P)
        # Only edge noise joins the messages of two servers; what colluders send follows from what they know.
        audible = ~np.isin(sender, sorted(colluders)) & ((sender == p) | bool(scheme.sigma_pair))
        signal, noise = signal[audible], noise[audible]
    if not len(signal):
        return np.zeros(0)
    if scheme.sigma == 0.0:
        return np.full(1, np.inf)
    if scheme.law.normal:
        return np.full(1, math.sqrt(float(signal @ np.linalg.solve(noise @ noise.T, signal))))
    if Conversion.LAPLACE in scheme.law.conversions:
        return np.asarray(signal / np.abs(noise).sum(axis=1))
    raise _untested(scheme)


def loudness(e: Experiment, s: Sensitivity, unit: Unit) -> float:
    """What the noise that the run draws is at most, as a share of what the scheme says, and at most all of it.

    Measured on the messages of MEASURED rounds; it holds but for a chance of RISK.
    """
    scheme, made = e.algorithm.scheme, world(e, unit, Side(pairs(e, s, unit)[0].one), MEASURED)
    if scheme.sigma == 0.0 or scheme.exchange == Exchange.NOTHING:
        return 1.0
    w, found = made.start(np.tile(e.problem.start, (e.graph[0].P, 1))), []
    for i in range(1, MEASURED + 1):
        done, graph = made.round(i, w), e.graph[(i - 1) % len(e.graph)]
        sender = links(graph)[0] if scheme.by_link else np.arange(graph.P)
        psi = done.psi.mean(axis=0, keepdims=True) if scheme.exchange == Exchange.AVERAGE else done.psi[sender]
        z = made.arithmetic.value(done.sent) - made.arithmetic.value(psi)
        size = np.full(len(z), scheme.sigma)
        if scheme.sigma_pair:  # what two servers share is met once
            both = scheme.sigma**2 + graph.degrees[unit.p] * scheme.sigma_pair**2
            z, size = z[unit.p : unit.p + 1], np.sqrt([both])
        drawn = np.abs(z).max(axis=1) > 0.0  # who is absent draws nothing
        found.append((z[drawn] / size[drawn, None]).ravel())
        w = done.w
    return _share(np.concatenate(found), scheme)


def client_loudness(e: Experiment, s: Sensitivity, unit: Unit) -> float:
    """The same of what single clients add, where they send in clear."""
    sigma, M = e.algorithm.scheme.sigma_client, e.problem.M
    made = world(e, unit, Side(pairs(e, s, unit)[0].one), MEASURED)
    drawn = [made.client_noise(i, unit.p, k, M) for i in range(1, MEASURED + 1) for k in range(e.algorithm.sampled)]
    return _share(np.concatenate([z for z in drawn if z is not None]) / sigma, e.algorithm.scheme)


def _share(z: Floats, scheme: Scheme) -> float:
    """Of noise that should have standard deviation 1, what it has at most."""
    from scipy.stats import chi2

    if not len(z):
        return 1.0
    if scheme.law.normal:
        return min(1.0, float(math.sqrt(z @ z / chi2.ppf(RISK, len(z)))))
    if Conversion.LAPLACE in scheme.law.conversions:
        return min(1.0, float(2.0 * math.sqrt(2.0) * np.abs(z).sum() / chi2.ppf(RISK, 2 * len(z))))
    raise _untested(scheme)


def _untested(scheme: Scheme) -> InputError:
    return InputError("scheme.noise", scheme.law.name, "no test of this noise is known, so that nothing attacks it")


def release_loudness(price: Price, seed: int, sigma: float) -> float:
    """The same of the release that a run makes, of which all shares together should put `sigma` on the mean."""
    from scipy.stats import chi2

    P, dtype = price.plan.P, np.float64 if price.plan.algorithm.fraction_bits is None else np.int64
    z = Releasing.of(price).make(np.zeros((P, WIDE), dtype), np.zeros((P, WIDE)), seeded(seed))
    if z is None or not sigma:
        return 0.0
    return min(1.0, float(math.sqrt(z @ z / chi2.ppf(RISK, len(z)))) / sigma)
