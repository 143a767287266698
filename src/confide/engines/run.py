"""What a simulation leaves: metrics, models, and everything needed to run it again."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError, RunError
from confide.base.files import atomic_folder
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.local import sgd
from confide.rounds.schemes import KEYS, Exchange

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS, RECORD, MODEL = "metrics.parquet", "run.json", "model.npz"
LEDGER = "ledger.jsonl"
CLEAN = "unreleased_models.npz"
FORMAT = 1
NOT_RELEASED = (  # of an accounted run on somebody's data: computed from them, and nothing pays for it
    METRICS,
    CLEAN,
    "curves",
    "final",
    "steady_state",
    "released_db",
    "diverged",
    "notes",
    "seconds",
    "model.features where they were computed from the data",
)
NOT_ACCOUNTED = "privacy        not accounted"
_KINDS = {"inputs": dict, "model": dict, "notes": list, "seconds": float, "interrupted": bool}  # of run.json


class Divergence(dict[str, Any]):
    """Where a run broke: round, repetition and the step-size; and why, where the theory knows."""

    def __init__(self, round: int, repetition: int, step: float, why: str | None = None) -> None:
        super().__init__(round=round, repetition=repetition, step=step, **({} if why is None else {"why": why}))


class DivergenceWarning(UserWarning):
    def __init__(self, round: int, repetition: int, step: float, why: str | None = None) -> None:
        super().__init__(
            f"the run diverged in round {round} of repetition {repetition} with step {step:g}; "
            f"the {round - 1} rounds before it are kept. A smaller step is the remedy" + (f": {why}" if why else "")
        )


class StabilityWarning(DivergenceWarning):
    """A divergence that the theory foresees, before the first round."""

    def __init__(self, why: str) -> None:
        UserWarning.__init__(self, f"{why}. {MAY_LOOK_FINE}")


class NoNoiseWarning(UserWarning):
    """A scheme that adds no noise on this graph."""


MAY_LOOK_FINE = "Up to about twice the limit most runs still look fine; their average is ruled by the few that do not"


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """Result of `confide.simulate`.

    Attributes:
        metrics: arrays by name, shape (repeats, rounds done); NaN between evaluations.
        models: the servers' last models, shape (repeats, P, M); P is 0 in a run read from a folder that kept none.
        inputs: problem, graph, algorithm, rounds, repeats and seed, as plain data.
        model: name and regulariser of the model, with the features it was trained on.
        notes: what every output must say, such as "synthetic".
        privacy: the privacy statement; None is printed as "not accounted".
        released: what `privacy.release` reveals, noise included: of `centroid:SIGMA` one model, shape (repeats, M), of
            `local` and `consensus:T` those of the servers; None of `none`, and of a run that broke.
        released_db: mean-square deviation of that from the optimum.
        bytes_a_round: what a round sends, by who sends it to whom (`traffic`).
        private: the data are somebody's. Where such a run is accounted, only `released` is meant for others: the rest
            is computed from the data without a price, and `save` keeps `models` only when told to.
        interrupted: stopped by Ctrl-C; the rounds before are whole.
        diverged: where the run broke, or None.
        config: the config file's content when the run was made from one.
    """

    metrics: dict[str, Floats]
    models: Floats
    inputs: Mapping[str, Any]
    model: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    privacy: Mapping[str, Any] | None = None
    seconds: float = 0.0
    interrupted: bool = False
    diverged: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None
    released: Floats | None = None
    released_db: float | None = None
    private: bool = False
    bytes_a_round: Mapping[str, float] = field(default_factory=dict)

    @property
    def guarded(self) -> bool:
        """Accounted, on somebody's data: nothing but `released` is meant for others."""
        return self.private and self.privacy is not None

    @property
    def rounds(self) -> int:
        """Rounds completed by every repetition."""
        return int(next(iter(self.metrics.values())).shape[1])

    @property
    def repeats(self) -> int:
        return int(self.models.shape[0])

    @property
    def centroids(self) -> Floats:
        """w_c of every repetition, (repeats, M)."""
        if not self.models.shape[1]:
            raise InputError("run", "models", "were not kept (output.unreleased_models); use what was released")
        return np.asarray(self.models.mean(axis=1))

    def learned(self, repeat: int = 0) -> Floats:
        """One model, (M,): what was released, or the mean of the servers' where nothing was."""
        if self.released is not None:
            released = self.released[repeat]
            return released if released.ndim == 1 else np.asarray(released.mean(axis=0))
        if not self.models.shape[1]:
            remedy = (
                "released no model (privacy.release = 'none', or it diverged), and clean ones are not kept; run it "
                "with privacy.release = 'centroid:SIGMA', or for your own eyes with output.unreleased_models = true"
            )
            raise InputError("run", self.inputs["problem"]["name"], remedy)
        return np.asarray(self.models[repeat].mean(axis=0))

    @property
    def steady_state(self) -> dict[str, float] | None:
        """MSD in dB, averaged over repetitions and the last fifth of the rounds; None without a known optimum."""
        levels = {f"{which}_db": float(np.mean(self.levels(f"{which}_msd"))) for which in ("centroid", "individual")}
        if not all(math.isfinite(x) and x > 0 for x in levels.values()):
            return None
        return {name: 10.0 * math.log10(x) for name, x in levels.items()}

    def levels(self, metric: str) -> Floats:
        """A metric's mean over the last fifth of the rounds, for each repetition."""
        last = max(1, math.ceil(self.rounds / 5))
        return (
            np.asarray(self.metrics[metric][:, -last:].mean(axis=1)) if self.rounds else np.full(self.repeats, np.nan)
        )

    @property
    def final(self) -> dict[str, float | None]:
        """The last evaluated value of every metric, averaged over repetitions."""
        values: dict[str, float | None] = {}
        for name, rows in self.metrics.items():
            seen = np.flatnonzero(np.isfinite(rows).all(axis=0))
            values[name] = float(rows[:, seen[-1]].mean()) if len(seen) else None
        return values

    def summary(self) -> dict[str, Any]:
        """One JSON-able object: what `confide simulate --json` prints."""
        own = (
            "rounds", "repeats", "final", "steady_state", "bytes_a_round", "released_db", "privacy", "private",
            "interrupted", "diverged", "seconds",
        )  # fmt: skip
        return {name: getattr(self, name) for name in own} | {
            "seed": self.inputs["seed"],
            "not_released": list(NOT_RELEASED) if self.guarded else [],
            "notes": list(self.notes),
        }

    @property
    def statement(self) -> str:
        """The privacy statement with everything that it rests on."""
        if self.privacy is None:
            return NOT_ACCOUNTED
        from confide.privacy.statement import lines

        return "\n".join(lines(self.privacy["statement"]))

    def __repr__(self) -> str:
        lines = self.facts()
        if self.privacy is not None:
            from confide.privacy.statement import table

            lines += ["", *table(self.privacy["statement"]), "", "What the numbers rest on: print(run.statement)"]
        return "\n".join(lines)

    def facts(self) -> list[str]:
        """In a few lines what was run and what came of it, without the privacy statement."""
        algorithm, graph = self.inputs["algorithm"], self.inputs["graphs"][0]
        scheme = algorithm["scheme"]
        noise = f", {scheme['law']} sigma {scheme['sigma']:.3g}" if scheme["sigma"] else ""
        if scheme["sigma_client"]:
            noise += f", {scheme['law']} sigma {scheme['sigma_client']:.3g} on client links"
        problem = self.inputs["problem"]["name"]
        lines = [
            f"{scheme['name']}{noise} on {problem}, {graph['name']} ({graph['weights']}), "
            f"{self.rounds} rounds x {self.repeats}",
        ]
        if self.steady_state is not None:
            lines.append("steady state   centroid {centroid_db:.1f} dB, individual {individual_db:.1f} dB".format(
                **self.steady_state
            ))  # fmt: skip
        tests = {k.removeprefix("test_"): v for k, v in self.final.items() if k.startswith("test_") and v is not None}
        tests.pop("metric", None)
        if tests:
            lines.append("test           " + ", ".join(f"{k} {v:.4g}" for k, v in tests.items()))
        if self.privacy is None:
            lines.append(NOT_ACCOUNTED)
        elif self.released is not None or self.guarded:
            what = "nothing" if self.released is None else self.privacy["settings"]["release"]
            level = "" if self.released_db is None else f", {self.released_db:.1f} dB"
            lines.append(f"released       {what}{level}")
        if self.guarded:
            lines.append("not released   all else here: metrics, curves and notes come from the data without a price")
        lines += [f"note           {note}" for note in self.notes]
        if self.interrupted:
            lines.append(
                f"interrupted    after round {self.rounds} of {self.inputs['rounds']}; what was computed is kept"
            )
        if self.diverged:
            lines.append("diverged       in round {round} of repetition {repetition} with step {step:g}".format(
                **self.diverged
            ))  # fmt: skip
        return lines

    def save(self, folder: str | Path, unreleased_models: bool = False, *, curves: bool = False) -> list[str]:
        """Write metrics.parquet, run.json and model.npz into `folder`, all or nothing.

        An accounted run also leaves plan.json and ledger.jsonl: what was promised, and what every round cost. A folder
        that holds the ledger of earlier runs keeps them: this run is added, or refused where the promises are unlike.

        Args:
            folder: new, empty, or that of an earlier run, which is replaced.
            unreleased_models: on somebody's data model.npz holds what was released and nothing else; this keeps the
                clean models in unreleased_models.npz.
            curves: draw curves.png, .svg and .pdf, too. A run that cannot be drawn is saved without, with a warning.

        Returns:
            The paths of all files.

        Raises:
            InputError: the folder cannot be written or holds something else, or its ledger is of an unlike promise.
            RunError: the disk is full.
        """
        import polars as pl

        rows = _rows(self.repeats, self.rounds)
        frame = pl.DataFrame(rows | {name: m.ravel() for name, m in self.metrics.items()})
        record = {
            "format": FORMAT,
            **self.summary(),
            "inputs": self.inputs,
            "model": self.model,
            "config": self.config,
        }
        record |= {"versions": versions()}
        with atomic_folder(folder, RECORD) as temporary:
            frame.write_parquet(temporary / METRICS)
            (temporary / RECORD).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            clean = {"models": self.models, "centroids": self.centroids} if self.models.shape[1] else {}
            released = {} if self.released is None else {"released": self.released}
            about = {"description": np.array(json.dumps(self.model))}
            np.savez(temporary / MODEL, allow_pickle=False, **about, **released, **({} if self.guarded else clean))
            if self.guarded and unreleased_models and clean:
                np.savez(temporary / CLEAN, allow_pickle=False, **about, **clean)
            ledger = None if self.privacy is None else self.privacy.get("ledger")
            if ledger is not None or (Path(folder) / LEDGER).exists():
                from confide.privacy.run_ledger import write_ledger

                write_ledger(ledger, temporary, Path(folder), self.rounds)
            if curves and self.rounds:
                self._draw(temporary)
            written = sorted(path.name for path in temporary.iterdir())
        return [str(Path(folder) / name) for name in written]

    def _draw(self, folder: Path) -> None:
        try:
            from confide.figures import figures  # matplotlib only now: the first round need not wait for it

            figures.save(self.plot(), folder / "curves")
        except (OSError, InputError, RunError):
            raise
        except Exception as e:
            warnings.warn(f"the curves could not be drawn ({e}); everything else is saved", stacklevel=3)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read back what `save` wrote.

        Raises:
            InputError: the folder does not hold a whole run.
        """
        import polars as pl

        folder = Path(folder)
        for name in (RECORD, METRICS, MODEL):
            if not (folder / name).is_file():
                raise InputError("run", str(folder), f"{name} is missing; name a folder written by Run.save")
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise InputError("run", str(folder), f"has format {record['format']}, this confide reads {FORMAT}")
            arrays = _arrays(folder / MODEL) | (_arrays(folder / CLEAN) if (folder / CLEAN).is_file() else {})
            if record.get("private") and record["privacy"] is not None:
                arrays.setdefault("models", np.empty((record["repeats"], 0, 0)))
            models, released = arrays["models"], arrays.get("released")
            columns = {c.name: c.to_numpy() for c in pl.read_parquet(folder / METRICS)}
            metrics, kept = _metrics(record, columns, models), ("privacy", "diverged", "config", "versions")
            facts = {name: record[name] for name in (*_KINDS, *kept)}
            facts |= {"notes": tuple(record["notes"]), "released": released}
            later = {name: record[name] for name in ("released_db", "private", "bytes_a_round") if name in record}
            return cls(metrics, models, **facts | later)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, pl.exceptions.PolarsError) as e:
            reason = " ".join(str(e).split())[:200]
            raise InputError("run", str(folder), f"is not a whole run ({reason}); run it again") from None

    def plot(self) -> Figure:
        """Learning curves of the centroid and the individual models, mean and 95% band over repetitions."""
        from confide.figures.figures import plot_run

        return plot_run(self)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        return {name: found[name] for name in ("models", "released") if name in found}


def _rows(repeats: int, rounds: int) -> dict[str, NDArray[np.int64]]:
    """The first two columns of metrics.parquet."""
    return {
        "repeat": np.repeat(np.arange(repeats), rounds),
        "round": np.tile(np.arange(1, rounds + 1), repeats),
    }


def _metrics(record: dict[str, Any], columns: dict[str, NDArray[Any]], models: Floats) -> dict[str, Floats]:
    """The metrics of a saved run, once its three files are known to speak of the same one."""
    for name, kind in _KINDS.items():
        if not isinstance(record[name], kind):
            raise ValueError(f"{RECORD} has no {name}")
    repeats, rounds = record["repeats"], record["rounds"]
    if models.ndim != 3 or len(models) != repeats:
        raise ValueError(f"{MODEL} does not hold the models of {repeats} repetitions")
    for name, expected in _rows(repeats, rounds).items():
        if not np.array_equal(columns.pop(name), expected):
            raise ValueError(f"{METRICS} does not hold the rounds of {RECORD}")
    if columns.keys() != record["final"].keys():
        raise ValueError(f"{METRICS} does not hold the metrics of {RECORD}")
    return {name: np.array(c, dtype=np.float64).reshape(repeats, rounds) for name, c in columns.items()}


def describe(problem: Problem, graphs: tuple[Graph, ...], algorithm: GFL, **rest: Any) -> dict[str, Any]:
    """The inputs of a run as plain data."""
    settings, local = asdict(replace(algorithm, local=sgd)), algorithm.local
    settings["scheme"] |= {key: getattr(algorithm.scheme, key) for key in KEYS} | {"law": str(algorithm.scheme.law)}
    settings["scheme"]["receivers"] = getattr(algorithm.scheme.receivers, "__qualname__", None)
    settings["local"] = "sgd" if local is sgd else f"{local.__module__}.{getattr(local, '__qualname__', repr(local))}"
    return {
        "problem": dict(problem.spec),
        "graphs": [g.to_dict() for g in graphs],
        "algorithm": json.loads(json.dumps(settings, default=lambda x: x.tolist())),  # NumPy's numbers and arrays
        **rest,
    }


def traffic(graphs: Sequence[Graph], algorithm: GFL, M: int) -> dict[str, float]:
    """Bytes that a round sends: 8 for every number, or a ring's word in a secure sum, and nothing for what is around.

    Failures and dropout are left out, several graphs are averaged over their turns, and a centre takes one message of
    every server and answers it.
    """
    P, exchange = graphs[0].P, algorithm.scheme.exchange
    messages = {
        Exchange.GRAPH: 2.0 * sum(len(g.edges) for g in graphs) / len(graphs),
        Exchange.AVERAGE: 2.0 * P,
        Exchange.NOTHING: 0.0,
    }[exchange]
    word = 8 if algorithm.aggregation is None else algorithm.encoding().dtype.itemsize
    updates = float(P * algorithm.sampled * M)
    return {"between_servers": 8.0 * M * messages, "from_clients": word * updates, "to_clients": 8.0 * updates}


def describe_model(problem: Problem) -> dict[str, Any]:
    """What `confide predict` must know."""
    name = getattr(problem.model, "name", type(problem.model).__name__)
    return {"name": name, "rho": float(problem.model.rho), "features": problem.features}


def versions() -> dict[str, str]:
    packages = ("confide", "numpy", "numba", "scipy", "polars")
    return {"python": sys.version.split()[0]} | {p: metadata.version(p) for p in packages}
