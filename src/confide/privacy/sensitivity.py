"""How far two neighbouring data sets can drive a server's psi apart: Delta_1..Delta_T, with the proof that was used.

Given the messages, the deviation obeys Delta_{j+1} <= gamma c Delta_j + s (docs/design/privacy.md, 1.2): c is the
carry of the scheme, s what one round's change of data adds, gamma what the local map does to a deviation that is
already there. Each proof licenses its own s and gamma, and only that; what no proof licenses is refused.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, one_of, positive, positive_int
from confide.laws.law import Norm
from confide.plans import words
from confide.privacy import monotone
from confide.privacy.rounding import Rounding
from confide.rounds import clipping

WITHOUT: Final = (
    "What holds for any loss: a scheme with carry 0, such as shared; level 'unit'; proof 'regulariser:RHO' with "
    "clipped examples; noise inside secure sums"
)
REAL_NUMBERS: Final = (
    "models, updates and noise are real numbers: true of the mathematics, simulated in floating point; networks and "
    "GPUs have single precision, in which a large model rounds its updates"
)


@dataclass(frozen=True)
class Sensitivity:
    """The facts that bound one client's (example's, unit's) influence.

    Attributes:
        step: mu.
        bound: B, of `clip = "example"` or "update"; `norm` is its norm.
        level: whose data may change: a whole "unit", one "client", one "example".
        adjacency: "replace" (other data) or "zero-out" (no contribution).
        sampled: L; fixed in the denominator. clients: K, of the smallest unit. dim: M. batch: the smallest mini-batch.
        local_steps: E, one number or the least and the largest over the clients.
        proof: none, regulariser:RHO, convex-glm:NU or public-point. participation: all, cap:N, random:Q or amplified:Q.
        smoothness: delta of every sampled loss, declared; without it convex-glm credits `monotone` only.
        convex: name of a model of the user's own that only declares a convex loss; empty for confide's.
        clip: "example" or "update"; some proofs hold only for per-example clipping.
        regulariser: rho of the model; where examples are clipped its decay is outside of the clip.
        rounding: the grid of fixed point; None is the real numbers.
        network: the gradients are those of a user's network, in single precision.
        reached: whether some data have any gradient in the ball of the clip, at any model: known of squared losses, the
            labels of which have no bound. A label that a logistic or a softmax model is sure of has next to none.

    Raises:
        InputError: a number is out of its range, or the proof does not hold for this step, clip or level.

    >>> Sensitivity(step=0.1, bound=1.0, sampled=5).single
    0.04
    """

    step: float
    bound: float
    norm: str = "l2"
    level: words.Level = words.Level.CLIENT
    adjacency: words.Adjacency = words.Adjacency.REPLACE
    sampled: int | None = None
    clients: int | None = None
    dim: int | None = None
    local_steps: int | tuple[int, int] = 1
    batch: int | None = None
    proof: words.Proof = words.ClippingAlone()
    participation: words.Participation = words.Always()
    smoothness: float | None = None
    convex: str = ""
    clip: str = "example"
    regulariser: float = 0.0
    rounding: Rounding | None = None
    network: bool = False
    reached: bool = True

    def __post_init__(self) -> None:
        for name, word in {  # text is parsed once, here
            "level": words.chosen(words.Level, self.level, "level"),
            "adjacency": words.chosen(words.Adjacency, self.adjacency, "adjacency"),
            "proof": words.proof(self.proof),
            "participation": words.participation(self.participation),
        }.items():
            object.__setattr__(self, name, word)
        positive("step", self.step)
        positive("bound", self.bound)
        one_of("norm", self.norm, clipping.NORMS)
        one_of("clip", self.clip, clipping.KINDS)
        fewest, most = (positive_int("local_steps", E) for E in self.steps)
        if fewest > most:
            raise InputError("local_steps", self.local_steps, "the least comes first, then the largest")
        for name in ("sampled", "clients", "dim", "batch"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        if self.smoothness is not None:
            positive("smoothness", self.smoothness)
        if self.sampled is not None and self.clients is not None and self.sampled > self.clients:
            raise InputError("sampled", self.sampled, f"there are only {self.clients} clients")
        if self.level is not words.Level.UNIT and self.sampled is None:
            raise InputError("sampled", None, f"level '{self.level}' divides by L; give --sampled L")
        if self.level is words.Level.EXAMPLE and self.batch is None:
            raise InputError("batch", None, "level 'example' divides by the batch; give --batch N")
        if self.level is words.Level.EXAMPLE and self.clip != "example":
            raise InputError("clip", self.clip, "level 'example' needs per-example clipping")
        if not isinstance(self.participation, words.Always) and self.level is words.Level.UNIT:
            raise InputError("participation", str(self.participation), "a unit takes part in every round; use all")
        if isinstance(self.participation, words.Random | words.Amplified):
            if self.sampled is None or self.clients is None:
                remedy = "the rate is L / K: give --sampled L and --clients K, the clients of the smallest unit"
                raise InputError("clients" if self.clients is None else "sampled", None, remedy)
            rate = self.sampled / self.clients
            if abs(rate - self.participation.rate) > 1e-9 * rate:
                remedy = f"sampling L = {self.sampled} of K = {self.clients} gives {rate:g}"
                raise InputError("participation", str(self.participation), remedy)
        if isinstance(self.proof, words.Regulariser | words.ConvexGlm) and self.clip != "example":
            remedy = "clipping the whole update breaks this proof; clip examples, or use none or public-point"
            raise InputError("proof", str(self.proof), remedy)
        number("regulariser", self.regulariser, least=0.0)
        _check_decay(self)
        _check_proof(self)

    @property
    def steps(self) -> tuple[int, int]:
        """Fewest and most local steps of a client."""
        return self.local_steps if isinstance(self.local_steps, tuple) else (self.local_steps, self.local_steps)

    @property
    def swap(self) -> float:
        """2 mu B / L: how far psi moves in one round when the whole data of a client (a unit) become any others."""
        full = 2.0 * self.step * self.bound
        if self.level is words.Level.UNIT:
            return full
        assert self.sampled is not None  # noqa: S101 - checked
        return full / self.sampled

    @property
    def monotone(self) -> bool:
        """Whether convex-glm rests on monotone gradients; a unit's clients all change, and have nothing in common."""
        return (
            isinstance(self.proof, words.ConvexGlm) and self.smoothness is None and self.level is not words.Level.UNIT
        )

    @property
    def credits_batch(self) -> bool:
        """Whether one example moves its client's update by 1/batch of the bound only.

        It does when the other examples meet the same model under both data sets (every client takes one step), or a
        local map that does not expand. Otherwise all gradients of the client may change.
        """
        not_expanding = isinstance(self.proof, words.ConvexGlm) and not self.monotone
        return self.level is words.Level.EXAMPLE and (self.steps[1] == 1 or not_expanding)

    @property
    def changed(self) -> float:
        """What the changed data themselves add to psi in one round, beside what others do in response."""
        moved = self.swap / (2.0 if self.adjacency is words.Adjacency.ZERO_OUT else 1.0)
        return moved / self.batch if self.level is words.Level.EXAMPLE and self.batch else moved

    @property
    def single(self) -> float:
        """s: what the change of data can add to psi in one round from the same model, in the clip's norm."""
        if self.level is not words.Level.EXAMPLE or self.credits_batch:
            return self.changed
        if self.monotone:
            assert self.sampled is not None  # noqa: S101 - checked
            return min(monotone.example(self) / self.sampled, self.swap)
        return self.swap  # also where the example contributes nothing: its client's other gradients stay

    @property
    def contraction(self) -> float:
        """gamma of the proof."""
        fewest, most = self.steps
        if isinstance(self.proof, words.Regulariser):
            # g d + (B / rho)(1 - g) is largest for the client that shrinks most
            return float((1.0 - 2.0 * self.proof.ridge * self.step / fewest) ** fewest)
        if isinstance(self.proof, words.ConvexGlm):  # more steps contract less
            return float((1.0 - self.step * self.proof.convexity / most) ** most)
        return 1.0

    def added(self, remembers: bool) -> float:
        """s of the recursion: the share 1/L is credited only where a proof covers the other clients.

        With carry 0 (`remembers` false) the others start from a public model and their updates do not change.
        """
        if remembers and self.monotone:
            return self.changed
        if (
            not remembers
            or self.level is words.Level.UNIT
            or isinstance(self.proof, words.ConvexGlm | words.PublicPoint)
        ):
            whole_unit = self.single
        elif isinstance(self.proof, words.Regulariser):
            if not isinstance(self.participation, words.Always):
                remedy = (
                    "under proof regulariser the updates of all clients of the unit may change in every round, whoever "
                    "takes part; use all, or another proof"
                )
                raise InputError("participation", str(self.participation), remedy)
            whole_unit = 2.0 * self.step * self.bound  # of the other clients, also where one contributes nothing
        else:
            remedy = (
                f"with carry > 0 the other clients start from another model, so their updates change too; level "
                f"'{self.level}' needs a proof (regulariser, convex-glm, public-point), or use level 'unit'"
            )
            if self.network:
                remedy = (
                    "with carry > 0 the other clients start from another model, and no convexity bounds by how much "
                    f"more a network's updates then differ. {WITHOUT}"
                )
            raise InputError("proof", str(self.proof), remedy)
        if isinstance(self.proof, words.Regulariser) and remembers:
            # (B / rho)(1 - g): the geometric sum of E clipped steps, each shrunk by those after it.
            return whole_unit * (1.0 - self.contraction) / (2.0 * self.proof.ridge * self.step)
        return whole_unit

    def attained(self, remembers: bool) -> bool:
        """Whether some data move psi as far as `deltas` says in every round; else it is a bound only."""
        if self.rounding is not None or self.level is words.Level.EXAMPLE or self.steps[1] > 1 or not self.reached:
            return False  # an example is not in every batch, and a gradient may vanish as it is followed
        if self.level is words.Level.CLIENT and self.clients is not None and self.sampled != self.clients:
            return False  # who was drawn is hidden
        if remembers and isinstance(self.proof, words.Regulariser):
            return self.level is words.Level.UNIT
        if self.clip == "example" and self.regulariser:
            # The decay shrinks a deviation that is kept beyond what is credited.
            credited = self.proof.convexity if isinstance(self.proof, words.ConvexGlm) else 0.0
            if remembers and credited < 2.0 * self.regulariser * (1 - 1e-12):
                return False
        return not (remembers and self.monotone)

    def to_norm(self, norm: Norm) -> tuple[float, list[str]]:
        """Factor from the clip's norm to the norm of the noise, with what it rests on."""
        if norm is Norm.L2:
            return 1.0, ["l1 clipping bounds the l2 norm too"] if self.norm == "l1" else []
        l2_fact = isinstance(self.proof, words.ConvexGlm)
        if self.norm == "l1" and not l2_fact:
            return 1.0, []
        if self.dim is None:
            why = "non-expansiveness is an l2 fact" if l2_fact else "the clip bounds the l2 norm"
            raise InputError("dim", None, f"{why}; Laplace noise needs l1, a factor sqrt(M): give --dim M")
        return math.sqrt(self.dim), [f"l1 sensitivity = sqrt(M) times l2, M = {self.dim}"]

    def ones(self, norm: Norm) -> float:
        """Norm of the vector of ones in which `deltas` counts roundings: l1 only where the noise asks for it."""
        if self.rounding is None:
            return 0.0
        if self.dim is None:
            raise InputError("dim", None, "every coordinate is rounded; give M")
        return float(self.dim) if norm is Norm.L1 and self.to_norm(norm)[0] == 1.0 else math.sqrt(self.dim)

    def assumptions(self, remembers: bool) -> list[str]:
        """In words, what this deviation rests on; `remembers`: a model keeps what it was told in earlier rounds."""
        what = {
            words.Level.UNIT: "all data of one unit",
            words.Level.CLIENT: "all data of one client",
            words.Level.EXAMPLE: "one example of one client",
        }[self.level]
        change = (
            "is replaced by any other" if self.adjacency is words.Adjacency.REPLACE else "contributes nothing instead"
        )
        found = [
            f"adjacency: {what} {change}",
            f"clipping ({self.clip}) bounds a client's update by mu B = {self.step * self.bound:g} in {self.norm}",
            "units and clients are disjoint: a client belongs to one unit",
            "the roster is public: who the units and clients are, and how many",
            f"how data were prepared (scaling, categories, held-out rows) depends on no other {self.level}'s data",
            "who takes part, who drops out and how long it takes does not depend on the data: a deployed client whose "
            "data fail a check, or its training, takes part with zeros; that it does not crash or come late for its "
            "data's sake is assumed",
        ]
        if self.level is not words.Level.UNIT:
            found.append(f"L = {self.sampled} stays in the denominator under dropout")
        if (most := words.cap(self.participation)) is not None:
            found.append(
                f"each client gives data in at most {most} rounds, enforced by counting a round "
                "before its update leaves, whatever becomes of it, and by zeros from then on; a deployed client counts "
                "in its own record, which nobody puts back"
            )
        if self.level is words.Level.EXAMPLE:
            found.append(f"the example is in every mini-batch of {self.batch}, once (drawn without replacement)")
            if self.network:
                found.append(
                    "the gradient of an example is computed from it and the model alone, its rounding in single "
                    "precision too: no layer and no kernel mixes the numbers of a mini-batch"
                )
            if not (self.credits_batch or self.monotone):
                found.append("several local steps without convex-glm: 1/batch is not credited")
        decays = (self.clip == "example" and self.regulariser > 0.0) or self.contraction < 1.0
        if self.adjacency is words.Adjacency.ZERO_OUT and decays:
            found.append("who contributes nothing has no data gradient; the regulariser's decay of its share stays")
        if remembers and isinstance(self.proof, words.Regulariser):
            found.append(
                f"proof regulariser: rho |w|^2 with rho = {self.proof.ridge:g} outside the clip; all clients of the "
                "unit may change, 1/L is not credited"
            )
        if isinstance(self.proof, words.ConvexGlm) and (
            remembers or (self.level is words.Level.EXAMPLE and self.steps[1] > 1)
        ):
            nu = self.proof.convexity
            found.append(
                f"proof convex-glm: per-example clipped generalised linear model, every sampled loss {nu:g}-strongly "
                f"convex (2 rho >= {nu:g})"
            )
            if self.convex:
                found.append(f"declared, not checked: {self.convex} has a convex loss of u'w (convex = True)")
            if self.smoothness is None:
                found.append(
                    "no smoothness is declared: clipped gradients are monotone whatever the step, 2 rho mu/E <= 1 "
                    f"(confide.privacy.monotone); features and labels are at most {monotone.LARGEST:g}"
                )
            else:
                found.append(f"declared: every sampled loss is {self.smoothness:g}-smooth, mu/E <= 2/(delta + nu)")
        if remembers and isinstance(self.proof, words.PublicPoint):
            found.append("proof public-point: gradients are evaluated at a function of the messages")
        if remembers and isinstance(self.proof, words.ClippingAlone):
            found.append("proof none: clipping alone, deviations add up")
        return found

    def deltas(
        self,
        kept: Callable[[int, Floats], Floats],
        rounds: int,
        remembers: bool,
        *,
        ones: float = 0.0,
        roundings: int = 0,
    ) -> Floats:
        """Delta_1..Delta_T in the clip's norm; where nothing is kept, a cap says in how many rounds, see `charged`.

        Args:
            kept: (j, Delta_1..Delta_j) -> deviation of w after round j given the messages, c Delta_j for a carry c;
                of several columns of Delta at once, of each.
            remembers: whether any deviation is kept.
            ones: see `ones`.  roundings: products that a publication rounds, in each coordinate.
        """
        s, grid = self.added(remembers), self.rounding
        gamma = self.contraction if remembers else 1.0
        first, rounded = max(s, self.single) if self.monotone else s, 0.0
        if grid is not None:
            s, first = grid.clipped(self, s), grid.clipped(self, first)
            first, rounded = grid.first(self, first, ones), roundings * grid.quantum * ones
        found = np.full(rounds, first)
        if not remembers:
            return found

        def after(deviation: Floats, added: float) -> Floats:
            if grid is not None:
                return grid.next(self, deviation, added, ones)
            return (monotone.drift(self, deviation) if self.monotone else gamma * deviation) + added

        most_rounds = words.cap(self.participation)
        if self.monotone and most_rounds is not None and most_rounds < rounds:
            return monotone.capped(lambda j, before: kept(j, before) + rounded, after, first, s, rounds, most_rounds)
        for j in range(1, rounds):
            found[j] = after(kept(j, found[:j]) + rounded, s)
        # At most `cap` participations, and where no deviation grows by itself: at most `cap` times s.
        flat = np.ones(rounds)
        if (
            most_rounds is not None
            and most_rounds < rounds
            and all(kept(j, flat[:j]) <= 1.0 + 1e-12 for j in range(1, rounds))
        ):
            most = s * np.minimum(np.arange(1, rounds + 1), most_rounds) + (first - s)
            if grid is not None:  # but by what is rounded, taking part or not
                for j in range(1, rounds):
                    before = np.asarray(most[j - 1] + rounded)
                    most[j:] += rounded + grid.slack(self, before, ones)
            found = np.minimum(found, most)
        return found

    def charged(self, costs: Floats, remembers: bool) -> Floats:
        """What each round adds to the most that the rounds so far can have cost, from the costs of single rounds.

        A cap lets a client give data in N rounds, any N of them. Where nothing is kept from round to round, the dearest
        N of the first j rounds are the most that j rounds cost: a ledger may end after every round. A deviation that is
        kept costs in all rounds, and `deltas` has the cap.
        """
        most_rounds = words.cap(self.participation)
        if remembers or most_rounds is None or len(costs) <= most_rounds:
            return costs
        found, dearest = costs.copy(), costs[:most_rounds].tolist()
        heapq.heapify(dearest)
        for j in range(most_rounds, len(costs)):
            found[j] = max(0.0, float(costs[j]) - heapq.heappushpop(dearest, float(costs[j])))
        return found


def _check_decay(s: Sensitivity) -> None:
    """Beyond 2 a step overshoots: what the data add grows from step to step, and so does a deviation that is kept."""
    if s.clip == "example" and 2.0 * s.regulariser * s.step / s.steps[0] > 2.0:
        remedy = (
            f"with rho = {s.regulariser:g} and E = {s.steps[0]} the decay 2 rho mu/E is beyond 2, where clipping "
            f"bounds nothing: at most {s.steps[0] / s.regulariser:g}"
        )
        raise InputError("step", s.step, remedy)


def _check_proof(s: Sensitivity) -> None:
    fewest = s.steps[0]
    eta = s.step / fewest
    if isinstance(s.proof, words.Regulariser) and 2.0 * s.proof.ridge * eta > 1.0:
        largest = fewest / (2.0 * s.proof.ridge)
        raise InputError("step", s.step, f"proof regulariser needs 2 rho mu/E <= 1: at most {largest:g}")
    if isinstance(s.proof, words.ConvexGlm):
        nu = s.proof.convexity
        if nu * eta > 1.0:
            raise InputError("step", s.step, f"proof convex-glm needs nu mu/E <= 1: at most {fewest / nu:g}")
        if s.smoothness is None and 2.0 * s.regulariser * eta > 1.0:
            largest = fewest / (2.0 * s.regulariser)
            remedy = f"convex-glm without a declared smoothness needs 2 rho mu/E <= 1: at most {largest:g}"
            raise InputError("step", s.step, remedy)
        if s.smoothness is not None and eta > 2.0 / (s.smoothness + nu):
            largest = 2.0 * fewest / (s.smoothness + nu)
            remedy = f"proof convex-glm needs mu/E <= 2/(delta + nu): a step of at most {largest:g}"
            raise InputError("step", s.step, remedy)
        if s.smoothness is not None and nu > s.smoothness:
            raise InputError("proof", str(s.proof), f"strong convexity cannot exceed the smoothness {s.smoothness:g}")
