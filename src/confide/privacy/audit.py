"""The audit: every attack on a config, and a measured lower bound beside every number of the accountant.

The membership table makes the account's worst case real: one client's (unit's) update sits at the clip bound in every
round, all else is fixed. The lower bound is measured and needs no proof; an account below it is wrong, and one far
above it is loose. Nothing in the measurement uses the accountant, which only says where to look and what to compare.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.config import Config, Experiment, named_as_in_config
from confide.errors import InputError
from confide.graph import Graph
from confide.privacy import attacks, conversion
from confide.privacy.accountant import Account, account
from confide.privacy.attacks import Attack
from confide.privacy.calibrate import PAIR_RATIO
from confide.privacy.membership import CONFIDENCE, Canary, Measured, epsilon_bound, fresh, measure, mu_bound
from confide.privacy.participation import amplified_curve
from confide.privacy.sensitivity import Participation, Proof, Sensitivity
from confide.privacy.threat import Release, Threat
from confide.reference import prepare
from confide.schemes import Scheme, scheme
from confide.validation import positive_int

Floats = NDArray[np.float64]
Accountant = Callable[..., Account]

MU: Final = 2.0  # of the calibrated rows
PURE: Final = 4.0  # epsilon of the calibrated Laplace rows, at delta = 0
RHO: Final = 0.5  # of the calibrated rows that mix Laplace messages with a Gaussian release
TIGHT: Final = 0.7  # of the upper bound that the lower must reach, for Gaussian noise with mu in RANGE
RANGE: Final = (0.5, 4.0)
COORDINATES: Final = 16  # over which a canary is spread, at most, where Laplace noise meets an l2 clip
VIEW: Final = 2_000  # messages of a view, at most
OFTEN: Final = (0.05, 0.5)  # L / K for which 10^4 runs can tell
HIDDEN: Final = 8  # rounds of the row with hidden participation: the test goes through 2^8 patterns


@dataclass(frozen=True)
class Row:
    """One scheme and one adversary, with epsilon at delta measured from below and accounted from above.

    Attributes:
        setting: "config" (its own noise) or what the noise was scaled to.
        lower, upper: epsilon; None for a leak, where nothing bounds it.
        mu_lower, mu_upper: of Gaussian noise. pure_lower, pure_upper: epsilon at delta = 0, of Laplace noise.
        tight: whether the lower bound has to come within 30% of the upper one.
        repeated: a first measurement lay above the account, as one in hundreds does by chance; this is a second.
    """

    scheme: str
    noise: str
    setting: str
    adversary: str
    sigma: float
    rounds: int
    delta: float
    lower: float | None = None
    upper: float | None = None
    mu_lower: float | None = None
    mu_upper: float | None = None
    pure_lower: float | None = None
    pure_upper: float | None = None
    false_positive_rate: float | None = None
    false_negative_rate: float | None = None
    tight: bool = False
    leak: bool = False
    repeated: bool = False

    @property
    def ratio(self) -> float | None:
        return self.lower / self.upper if self.lower is not None and self.upper else None

    @property
    def below(self) -> bool:
        """The account is not refuted."""
        pairs = ((self.lower, self.upper), (self.mu_lower, self.mu_upper), (self.pure_lower, self.pure_upper))
        return self.leak or all(low <= high for low, high in pairs if low is not None and high is not None)

    @property
    def ok(self) -> bool:
        return self.below and not (self.tight and (self.ratio or 0.0) < TIGHT)

    def to_dict(self) -> dict[str, Any]:
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names} | {"ratio": self.ratio, "ok": self.ok}


@dataclass(frozen=True)
class AuditReport:
    """What was tried and how it ended; `ok` when every attack went as predicted and no account was refuted."""

    attacks: tuple[Attack, ...]
    membership: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    runs: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        return all(a.ok for a in self.attacks) and all(r.ok for r in self.membership)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "attacks": [a.to_dict() for a in self.attacks],
            "membership": [r.to_dict() for r in self.membership],
            "runs": self.runs,
            "confidence": CONFIDENCE,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return "\n\n".join([_columns(*self._attack_rows()), _columns(*self._membership_rows()), "\n".join(self._end())])

    def _attack_rows(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [a.name, _verdict(a.ok), "yes" if a.succeeds else "no", "; ".join(_numbers(a.numbers))]
            for a in self.attacks
        ]
        return ["attack", "as predicted", "succeeds", "numbers"], rows

    def _membership_rows(self) -> tuple[list[str], list[list[str]]]:
        heads = ["membership", "noise", "setting", "adversary", "lower", "upper", "lower/upper", "mu lower", "mu", "ok"]
        rows = [
            [r.scheme, r.noise, r.setting, r.adversary]
            + [_short(x) for x in (r.lower, "leak" if r.leak else r.upper, r.ratio, r.mu_lower, r.mu_upper)]
            + [_verdict(r.ok) + ("" if r.below else " (refuted)") + (" (repeated)" if r.repeated else "")]
            for r in self.membership
        ]
        return heads, rows

    def _end(self) -> list[str]:
        verdict = "every attack went as predicted, every account stands" if self.ok else "SOMETHING IS WRONG: see NO"
        return [*(f"note: {n}" for n in self.notes), f"{verdict} ({self.seconds:.1f} s)"]


class Case(NamedTuple):
    """One row to measure; without a setting the noise is scaled."""

    scheme: Scheme
    threat: Threat = Threat()
    release: Release = Release()
    own_noise_known: bool = False
    setting: str | None = None


@dataclass(frozen=True)
class _Bench:
    """What all rows share."""

    graphs: tuple[Graph, ...]
    sensitivity: Sensitivity
    rounds: int
    others: Floats  # (P, M): everybody's real first update, kept fixed
    delta: float
    runs: int
    trials: int
    seed: int
    account: Accountant

    def row(self, case: Case, number: int) -> Row:
        if case.setting is None:
            # B as an l1 bound is what Laplace noise is made for: a canary in one coordinate then attains the account.
            norm = "l1" if case.scheme.law == "laplace" else self.sensitivity.norm
            fit = replace(self, sensitivity=replace(self.sensitivity, norm=norm))
            scaled, setting = fit.scaled(case)
            return fit.row(scaled._replace(setting=setting), number)
        upper = self.upper(case)
        gaussian = case.scheme.law == "gaussian"
        adversary = str(case.threat) + (f", release {case.release}" if case.release.kind != "none" else "")
        adversary += ", own noise" if case.own_noise_known else ""
        row = Row(
            case.scheme.name, case.scheme.law, case.setting, adversary, case.scheme.sigma, self.rounds, self.delta,
            upper=upper.epsilon, mu_upper=upper.mu_gdp, pure_upper=upper.epsilon_pure, leak=upper.leak,
        )  # fmt: skip
        if upper.leak or not upper.epsilon:
            return row if upper.leak else replace(row, lower=0.0)
        assert upper.target is not None  # noqa: S101 - every account without a leak has one
        # Given the messages only, the hidden g_pp protects more (often several times) than the account says.
        loose = case.scheme.noise_on == "link" and case.scheme.own_noise and not case.own_noise_known
        in_range = upper.mu_gdp is not None and RANGE[0] <= upper.mu_gdp <= RANGE[1]
        hidden = self.sensitivity.participation.kind != "all"
        row = replace(row, tight=gaussian and in_range and not loose and not hidden)
        canary = self.canary(case, upper.target)
        found = self.measured(row, canary, fresh(self.seed, number, 1))
        return found if found.below else replace(self.measured(row, canary, fresh(self.seed, number, 2)), repeated=True)

    def upper(self, case: Case) -> Account:
        return self.account(
            case.scheme, list(self.graphs), self.sensitivity, rounds=self.rounds, threat=case.threat,
            release=case.release, delta=self.delta,
        )  # fmt: skip

    def scaled(self, case: Case) -> tuple[Case, str]:
        """All noises times one factor, so that the account says mu = 2. Laplace: epsilon 4 at delta 0; with a release,
        whose noise is Gaussian, rho = 0.5."""
        while True:
            a = self.upper(case)
            if a.mu_gdp is not None:
                x, setting = a.mu_gdp / MU, f"mu = {MU:g}"
            elif a.epsilon_pure is not None:
                x, setting = a.epsilon_pure / PURE, f"pure epsilon = {PURE:g}"
            else:
                x, setting = math.sqrt((a.rho or 0.0) / RHO), f"rho = {RHO:g}"
            if a.leak or not x:
                return case, "no noise"
            s, release = case.scheme, case.release
            louder = replace(s, sigma=x * s.sigma, sigma_pair=x * s.sigma_pair)
            case = case._replace(scheme=louder, release=replace(release, sigma=x * release.sigma))
            if "rho" not in setting or abs(x - 1.0) < 1e-9:  # the rho of Laplace noise is no power of the factor
                return case, setting

    def canary(self, case: Case, target: int) -> Canary:
        s = self.sensitivity
        spread = s.norm == "l2" and case.scheme.law == "laplace"
        coordinates = min(self.others.shape[1], COORDINATES) if spread else 1
        size = s.step * s.bound / math.sqrt(coordinates)
        if s.level == "client":
            assert s.sampled is not None  # noqa: S101 - checked
            size /= s.sampled
        return Canary(
            case.scheme,
            self.graphs,
            self.rounds,
            target,
            (-size if s.adjacency == "replace" else 0.0, size),
            self.others[:, :coordinates],
            case.threat.against(self.graphs[0], target),
            case.own_noise_known,
            self.hidden(case, target) if case.release.kind == "centroid" else None,
            s.participation.value if s.participation.kind == "random" else 1.0,
        )

    def hidden(self, case: Case, target: int) -> float:
        """Standard deviation on the released mean of those servers' shares that the adversary does not know."""
        P = self.graphs[0].P
        known = len(case.threat.against(self.graphs[0], target))
        sized = min(case.release.colluders, P - 1)  # all but so many shares put sigma on the mean
        return case.release.sigma * math.sqrt((P - known) / (P - sized))

    def measured(self, row: Row, canary: Canary, seed: int) -> Row:
        gaussian = row.mu_upper is not None

        def bound(fpr: Floats, fnr: Floats) -> Floats:
            return mu_bound(fpr, fnr) if gaussian else epsilon_bound(fpr, fnr, self.delta)

        m = measure(canary, bound, runs=self.runs, trials=self.trials, seed=seed)
        best = float(bound(*m.limits))
        row = replace(
            row, false_positive_rate=m.false_positives / m.runs, false_negative_rate=m.false_negatives / m.runs
        )
        if gaussian:
            return replace(row, mu_lower=best, lower=conversion.gaussian_epsilon(best, self.delta))
        pure = None if row.pure_upper is None else float(epsilon_bound(*m.limits, 0.0))
        return replace(row, lower=best, pure_lower=pure)


def audit(
    config: Config,
    *,
    runs: int = 10_000,
    trials: int = 5_000,
    rounds: int = 10,
    attack_rounds: int = 32,
    accountant: Accountant = account,
    announce: Callable[[str], None] = lambda what: None,
) -> AuditReport:
    """Attack a config, and hold its accountant against what was measured.

    Args:
        runs: of each kind (with and without the canary) that count; `trials` others fix the test's threshold.
        rounds: of the membership runs, or the config's if it has fewer. The account is for the same number.
        attack_rounds: of the telescoping curves.
        accountant: whose numbers are the upper bounds.
        announce: told what is under way.
    """
    started = time.perf_counter()
    for name, value in (("runs", runs), ("trials", trials), ("rounds", rounds)):
        positive_int(name, value)
    if positive_int("attack_rounds", attack_rounds) < 4:
        raise InputError("attack_rounds", attack_rounds, "a curve over fewer than 4 rounds says nothing")
    e = config.build()
    if e.graph[0].P == 1:
        raise InputError("graph.topology", config.graph.topology, "one server sends no messages: nothing to attack")
    announce("attacks")
    seed = fresh(e.seed, 0)
    with named_as_in_config():
        tried = [
            *attacks.telescoping(e.problem, e.graph, e.algorithm, attack_rounds, seed),
            *attacks.leaks(e.problem, e.graph, e.algorithm, 20, seed),
            *attacks.features(e.problem, e.algorithm.step, e.algorithm.sampled, e.seed),
        ]
        bench, notes = _bench(config, e, runs, trials, rounds, accountant)
    rows = []
    for n, case in enumerate(cases(e.algorithm.scheme, e.graph, config.privacy.threat, config.privacy.release)):
        announce(f"membership: {case.scheme.name}, {case.scheme.law}, {case.threat}")
        try:
            rows.append(bench.row(case, n))
        except InputError as refusal:
            if case.setting is None:
                raise
            notes.append(f"no row for the config's own noise against {case.threat}, the accountant refuses: {refusal}")
    announce("membership: hidden participation")
    hidden, naive = _hidden(bench, e)
    rows.append(hidden)
    tried.append(naive)
    return AuditReport(tuple(tried), tuple(rows), tuple(notes), runs, time.perf_counter() - started)


def cases(configured: Scheme, graphs: Sequence[Graph], threat: str = "links", release: str = "none") -> list[Case]:
    """The config's scheme with its own noise, then every scheme with noise that makes the comparison meaningful."""
    mine, around = replace(configured, sigma_client=0.0), graphs[0].neighbours(0)
    one = Threat("colluders", frozenset({int(around[0])}))
    # Neighbours change where graphs take turns: there the same servers collude throughout.
    all_around = Threat("neighbours") if len(graphs) == 1 else Threat("colluders", frozenset(map(int, around)))
    asked = all_around if threat == "neighbours" else Threat.parse(threat)
    revealed = Release.parse(release).for_threat(asked, graphs)
    found = [Case(mine, setting="config")]
    if asked.kind in ("colluders", "neighbours"):  # servers receive the release too
        found.append(Case(mine, threat=asked, release=revealed, setting="config"))
    if revealed.kind == "centroid":
        found.append(Case(mine, release=revealed, setting="config"))
    partial = configured.name if configured.name.startswith("partial") else "partial:0.5"
    ratio = configured.sigma_pair / configured.sigma if configured.sigma_pair and configured.sigma else PAIR_RATIO
    end = Release("centroid", 1.0 / graphs[0].P)
    for law in ("gaussian", "laplace"):
        names = ("homomorphic", "shared", "own-clean", partial, "per-link-clean", "central")
        found += [Case(scheme(name, 1.0, noise=law)) for name in names]
        per_link, homomorphic = scheme("per-link", 1.0, noise=law), scheme("homomorphic", 1.0, noise=law)
        found.append(Case(per_link, own_noise_known=True))
        found += [Case(scheme("local-only", noise=law), release=end), Case(homomorphic, release=end)]
        if law == "gaussian":
            pairwise = scheme("pairwise", 1.0, noise=law, sigma_pair=ratio)
            found += [Case(per_link), Case(homomorphic, threat=all_around)]
            found += [Case(pairwise, threat=t) for t in (Threat(), one, all_around)]
    return found


def _bench(
    config: Config, e: Experiment, runs: int, trials: int, rounds: int, accountant: Accountant
) -> tuple[_Bench, list[str]]:
    clip, notes = e.algorithm.clip, []
    bound, norm = (1.0, "l2") if clip is None else (clip.bound, clip.norm)
    if clip is None:
        notes.append("the config has no clip, so nothing bounds an update: the canary takes B = 1 (l2), for this only")
    level = "unit" if config.privacy.level == "unit" else "client"
    if config.privacy.level == "example":
        notes.append("the canary is a whole client, not one example")
    messages = max(2 * len(g.edges) for g in e.graph)
    rounds = min(rounds, e.rounds, max(1, VIEW // max(messages, e.graph[0].P)))
    M = e.problem.M
    sensitivity = Sensitivity(
        step=e.algorithm.step,
        bound=bound,
        norm=norm,
        level=level,
        adjacency=config.privacy.adjacency,
        sampled=e.algorithm.sampled,
        dim=M,
        proof=Proof("public-point"),
        clip="update",
    )
    if norm == "l2" and M > COORDINATES and e.algorithm.scheme.law == "laplace":
        notes.append(f"the config's row spreads the canary over {COORDINATES} of {M} coordinates, a weaker test")
    notes += [
        f"membership: {runs} runs with and {runs} without the canary, {rounds} rounds (the config has {e.rounds}), "
        f"{level} level, {config.privacy.adjacency}, proof public-point: others' updates stay fixed, as they do here",
        f"lower bounds hold with {100 * CONFIDENCE:g}% confidence each (Clopper-Pearson; threshold from {trials} other "
        f"runs); so many can show no mu above {float(mu_bound(*Measured(0.0, runs, 0, 0).limits)):.3g}",
        "rows other than 'config' have noise scaled to the number in their setting, against their own adversary; "
        "for Laplace B is an l1 bound there",
    ]
    reference = prepare(e.problem, e.graph, replace(e.algorithm, arithmetic="float", aggregation=None), 1, e.seed)(0)
    start = np.zeros((e.graph[0].P, M))
    first = [reference.adapt(1, p, start[p], reference.sample(1, p)) for p in range(len(start))]
    graphs = tuple(e.graph)
    others = np.array(first)
    seed = fresh(e.seed, 1)
    bench = _Bench(graphs, sensitivity, rounds, others, config.privacy.delta, runs, trials, seed, accountant)
    return bench, notes


def _hidden(bench: _Bench, e: Experiment) -> tuple[Row, Attack]:
    """A client that takes part at random in homomorphic rounds: the valid account, and amplification, which is not."""
    L, K = e.algorithm.sampled, int(e.problem.federation.K.min())
    K = K if OFTEN[0] <= L / K <= OFTEN[1] else 4 * L
    q = L / K
    part = Participation("random", q)
    once = replace(bench.sensitivity, level="client", adjacency="zero-out", clients=K, participation=part)
    bench = replace(bench, sensitivity=once, rounds=HIDDEN)
    if HIDDEN * len(bench.others) > VIEW:  # the graph does not matter here
        bench = replace(bench, graphs=(Graph.ring(5),), others=bench.others[:5])
    always = replace(bench, sensitivity=replace(once, participation=Participation()))
    case, _ = always.scaled(Case(scheme("homomorphic", 1.0, noise="gaussian")))
    case = case._replace(scheme=replace(case.scheme, sigma=case.scheme.sigma / 2.0), setting=f"random:{q:g}")
    row = bench.row(case, 10_000)
    factor = np.full(bench.rounds, case.scheme.sigma**-2.0)
    # Who is drawn instead adds what the canary adds when it is absent: an exchange moves psi by s here, not by 2 s.
    naively = replace(once, bound=once.bound / 2.0, participation=Participation("amplified", q))
    curve, _ = amplified_curve(naively, "gaussian", factor)
    naive = conversion.renyi_epsilon(curve, bench.delta)
    lower = row.lower or 0.0
    return row, Attack(
        "naive amplification, homomorphic",
        "amplification by subsampling, round by round, is refuted where the state remembers: the measured epsilon is "
        "above it",
        lower > naive,
        True,
        {"participation": q, "rounds": bench.rounds, "measured": lower, "naive": naive, "accounted": row.upper},
    )


def _numbers(numbers: dict[str, Any]) -> list[str]:
    """Curves as their two ends."""
    found = []
    for name, value in numbers.items():
        ends = f"{_short(value[0])} .. {_short(value[-1])}" if isinstance(value, list) else _short(value)
        found.append(f"{name.replace('_', ' ')} {ends}")
    return found


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _verdict(ok: bool) -> str:
    return "yes" if ok else "NO"


def _columns(heads: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(r[c]) for r in [heads, *rows]) for c in range(len(heads))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in [heads, *rows]]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
