"""All that the theory says of one run, as plain data; what a part refuses is None, with the reason beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from confide.base.errors import InputError, RunError
from confide.graph.graph import Graph
from confide.plans.config import Experiment, named_as_in_config
from confide.theory.bounds import Bounds, bounds
from confide.theory.bounds_printed import Printed, printed_centroid, printed_disagreement, printed_individual
from confide.theory.constants import Constants, constants
from confide.theory.design import WHICH, best_step, fastest_mixing, noise_allowed
from confide.theory.fastest import RULES
from confide.theory.moments import cost
from confide.theory.prediction import Levels, Prediction, decibels, predict
from confide.theory.quadratics import exact
from confide.theory.stability import RADIUS, explain, max_stable_step

Json = dict[str, Any]
WITHIN_DB = 0.5  # of the limit: there a transient is called over
DOUBLED_DB = 10.0 * math.log10(2.0)  # the noise that doubles the error, where no target is given
LONG = 6e10  # operations, about a minute: no part takes longer, unless it is the prediction itself
PRINTED: dict[str, Callable[[Constants], Printed]] = {
    "centroid": printed_centroid,
    "disagreement": printed_disagreement,
    "individual_units": printed_individual,
}
LIMITS = {"max_stable_step": 30.0, "best_step": 15.0, "sigma_allowed": 3.0, "weights": 5.0}  # solved for, about


def summary(
    experiment: Experiment, target_db: float | None = None, announce: Callable[[str], None] = lambda what: None
) -> Json:
    """What `confide theory --json` prints.

    Args:
        experiment: what a config builds (`Config.build`), with one graph.
        target_db: error to plan the step and the noise for, in dB; None for the config's rounds.
        announce: told of each part before it is computed.

    Returns:
        Plain data; a part that is refused is None, with the reason under "refused".

    Raises:
        InputError: where neither constants nor predictions can be given.
    """
    if len(experiment.graph) > 1:
        names = [g.name for g in experiment.graph]
        raise InputError("graph.topology", names, "the theory is for one graph; of several that take turns, give one")
    return _Summary(experiment, target_db, announce).all()


class _Summary:
    def __init__(self, x: Experiment, target_db: float | None, announce: Callable[[str], None]) -> None:
        self.problem, self.graph, self.algorithm = x.problem, x.graph[0], x.algorithm
        self.run = (self.problem, self.graph, self.algorithm)
        self.rounds, self.seed = x.rounds, x.seed
        self.target_db, self.announce = target_db, announce
        self.refused: dict[str, str] = {}
        self.first: InputError | None = None

    def affordable(self, name: str, rounds: int = 0) -> bool:
        """Whether a part is quick enough; refused by name where it is not."""
        part = name.partition(".")[0]
        once = cost(self.problem, self.algorithm, self.seed, RADIUS)
        operations = LIMITS[part] * (1.0 + rounds / RADIUS) * once
        if part == "sigma_allowed" and not exact(self.problem):
            operations *= 10.0  # a root, not a line
        if operations > LONG:
            minutes = f"{operations / LONG:.0f} minutes"
            self.refused[name] = f"would take about {minutes} here; confide.theory does it in Python"
        return operations <= LONG

    def part(self, name: str, compute: Callable[[], Any]) -> Any:
        """The part, or None and why not."""
        try:
            with named_as_in_config(), np.errstate(all="ignore"):
                return compute()
        except InputError as e:
            self.first = self.first or e
            self.refused[name] = str(e)
        except RunError as e:
            self.refused[name] = str(e)
        except (ValueError, ArithmeticError, RuntimeError, np.linalg.LinAlgError):  # of NumPy and ARPACK, on infinities
            self.refused[name] = f"the numbers overflow with algorithm.step = {self.algorithm.step:g}"
        return None

    def all(self) -> Json:
        self.announce("constants and bounds")
        known: Constants | None = self.part("constants", lambda: constants(*self.run, self.seed))
        bounded = self.part("bounds", lambda: _bounds(bounds(*self.run, self.rounds, self.seed), known))
        self.announce("prediction")
        rounds, seed = self.rounds, self.seed
        found: Prediction | None = self.part("steady_state", lambda: predict(*self.run, rounds=rounds, seed=seed))
        if known is None and found is None and self.first is not None:
            raise self.first
        self.announce("the largest stable step")
        most: float | None = None
        if found is None or self.affordable("max_stable_step"):
            most = self.part("max_stable_step", lambda: max_stable_step(*self.run, seed=self.seed))
        beyond = most is not None and self.algorithm.step > most
        if found is None and beyond:
            self.refused.pop("steady_state")
        end = found.limit if found is not None else None
        stable = None if found is None and not beyond else end is not None
        self.announce("the best step")
        best = {which: self._best(which, most) for which in WHICH} if most is not None else dict.fromkeys(WHICH)
        if most is None:
            self.refused["best_step"] = self.refused["max_stable_step"]
        self.announce("weights")
        return {
            "exact": None if found is None else found.exact,
            "constants": None if known is None else known.to_dict(),
            "bounds": bounded,
            "steady_state": None if stable is None else _level_db(end),
            "stable": stable,
            "explanation": self._why(most, overflows=found is None) if stable is False else None,
            "max_stable_step": most,
            "best_step": best["centroid"]["step"] if best["centroid"] else None,
            "best": best,
            "split": None if end is None else {which: asdict(getattr(end, which)) for which in WHICH},
            "transient": None if found is None else _transient(found),
            "sigma": self.algorithm.scheme.sigma,
            "sigma_allowed": {which: self._noise(which, end) for which in WHICH},
            "weights": self._weights(stable is not None),
            "refused": self.refused,
        }

    def _best(self, which: str, most: float | None) -> Json | None:
        horizon: Json = {"rounds": self.rounds} if self.target_db is None else {"target_db": self.target_db}
        name = "best_step" if which == "centroid" else f"best_step.{which}"
        if not self.affordable(name, self.rounds):
            return None
        found = self.part(name, lambda: best_step(*self.run, seed=self.seed, which=which, most=most, **horizon))
        return None if found is None else {"step": found.step, "rounds": found.rounds, "db": found.db}

    def _noise(self, which: str, end: Levels | None) -> Json | None:
        """The sigma for a target: by default twice the error that is left without privacy noise."""
        name, target = f"sigma_allowed.{which}", self.target_db
        if end is None:
            unstable = f"algorithm.step = {self.algorithm.step:g} is not stable, so there is no limit"
            self.refused[name] = self.refused.get("steady_state", unstable)
            return None
        if target is None:
            level = getattr(end, which)
            quiet = decibels(level.bias_squared + level.gradient_noise)
            if quiet is None:
                self.refused[name] = "the error is 0 without noise; name a target with --target-db"
                return None
            target = quiet + DOUBLED_DB
        if not self.affordable(name):
            return None
        sigma = self.part(name, lambda: noise_allowed(*self.run, target, seed=self.seed, which=which))
        if sigma is None:
            return None
        unlimited = sigma == math.inf
        return {"target_db": target, "sigma": None if unlimited else sigma, "unlimited": unlimited}

    def _why(self, most: float | None, overflows: bool) -> str:
        said = None if overflows else self.part("explanation", lambda: explain(*self.run, seed=self.seed))
        self.refused.pop("explanation", None)
        if said is not None:
            return str(said)
        step = f"step {self.algorithm.step:g}"
        if most is not None and self.algorithm.step > most:
            return f"{step} is not mean-square stable: the limit is {most:.4g}"
        return f"{step} does not forget where it began, or is not mean-square stable: the error has no limit"

    def _weights(self, levels: bool) -> Json | None:
        if self.graph.P == 1:
            self.refused["weights"] = "one server alone has no edges to weigh"
            return None
        graphs = {rule: self.graph.with_weights(rule) for rule in RULES}
        if self.graph.weights == "given":
            graphs["given"] = self.graph
        levels = levels and self.affordable("weights.levels")
        table: Json = {name: self._mixing(g, levels) for name, g in graphs.items()}
        fastest = self.part("weights.fastest", lambda: fastest_mixing(self.graph))
        table["fastest"] = None
        if fastest is not None:
            table["fastest"] = self._mixing(fastest.graph, levels) | {"lower_bound": fastest.bound}
        return table

    def _mixing(self, graph: Graph, levels: bool) -> Json:
        found = None
        if levels:
            found = self.part("weights.levels", lambda: predict(self.problem, graph, self.algorithm, seed=self.seed))
        return {"iota_2": graph.iota_2, **_level_db(found.limit if found is not None else None)}


def _bounds(b: Bounds, known: Constants | None) -> Json:
    """Limits and the last round, in MSD and dB, and what the paper prints for the same."""
    last = {name: float(getattr(b, name)[-1]) for name in ("centroid", "disagreement", "individual")}
    return {
        "limits": {name: value.tolist() for name, value in b.limits.items()},
        "radius": b.radius,
        "last_round": last,
        "limits_db": {name: decibels(float(b.limits[name])) for name in last},
        "printed": None if known is None else {name: _printed(make, known) for name, make in PRINTED.items()},
    }


def _printed(make: Callable[[Constants], Printed], known: Constants) -> Json:
    try:
        limit, leaves_out = make(known)
    except InputError as e:
        return {"limit": None, "refused": str(e)}
    return {"limit": limit.tolist() if np.isfinite(limit).all() else None, "leaves_out": list(leaves_out)}


def _transient(found: Prediction) -> Json:
    """The last round, the last fifth as a run reports it, and the round from which the error is near its limit."""
    curves = {"centroid": found.centroid_msd, "individual": found.individual_msd}
    plain: Json = {
        "rounds": len(found.centroid_msd),
        "last_round": {f"{name}_db": decibels(float(curve[-1])) for name, curve in curves.items()},
        "last_fifth": found.steady_state,
        "settled_round": None,
    }
    if found.limit is None:
        return plain
    settled: dict[str, int | None] = {}
    for name, curve in curves.items():
        level = getattr(found.limit, name).total
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.flatnonzero(~(np.abs(10.0 * np.log10(curve / level)) <= WITHIN_DB)) if level > 0 else [len(curve)]
        after = int(far[-1]) + 2 if len(far) else 1
        settled[name] = after if after <= len(curve) else None
    return plain | {"settled_round": settled}


def _level_db(end: Levels | None) -> Json:
    return {f"{which}_db": None if end is None else decibels(getattr(end, which).total) for which in WHICH}
