"""Apply a saved model to a new table: `confide predict RUN TABLE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import whole
from confide.engines.run import Run
from confide.problems.features import FeatureMap, words
from confide.problems.models import BuiltIn, Linear, Softmax, named

if TYPE_CHECKING:
    import polars as pl


def predict(
    folder: str | Path, table: str | Path, *, repeat: int = 0, server: int | None = None
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Predictions for the rows of a table, and metrics where it has the label.

    Args:
        folder: a run saved by `Run.save`, or the model.npz that a deployment released. Of a run that released a model
            that one is applied; an accounted run on somebody's data has no other, unless it kept its clean ones.
        table: CSV or Parquet with the columns that the run was trained on; for a released model its M features in
            order, and the target last where it is known.
        repeat: which repetition's model.
        server: one server's model instead of the centroid or of what was released.
    """
    import polars as pl

    from confide.problems.reading import read_table

    if Path(folder).suffix == ".npz":
        return _released(Path(folder), read_table(table, "table"))
    run = Run.load(folder)
    described = run.model.get("features")
    if described is None:
        remedy = "was not trained on a table (its features have no columns); use a run of one, such as 'table'"
        if run.model.get("name") == "network":
            remedy = (
                "has the weights of a network, which only its own code can apply: in Python, "
                "confide.models.save(network, run, 'learned.safetensors') writes them by name"
            )
        raise InputError("run", str(folder), remedy)
    repeat = whole("repeat", repeat, 0, run.repeats - 1)
    w = _weights(run, repeat, server)
    frame = read_table(table, "table")
    X = FeatureMap.from_dict(described).apply(frame)
    name, label = run.model.get("name"), described.get("label")
    model = named(str(name), run.model["rho"])
    if model is None or not isinstance(label, dict) or X.shape[1] != len(w):
        raise InputError("run", str(folder), f"its model {name!r} cannot be applied; use a run of a table")
    scores = model.predict(w, X)
    columns: dict[str, Any] = {"prediction": scores}
    if "positive" in label:
        classes = np.where(scores > 0.5, str(label["positive"]), str(label["negative"]))
        columns = {"probability": scores, "prediction": classes}
    return pl.DataFrame(columns), _metrics(model, w, X, frame, label)


def _weights(run: Run, repeat: int, server: int | None) -> Floats:
    if server is None:
        return run.learned(repeat)
    released = None if run.released is None else run.released[repeat]
    models = released if released is not None and released.ndim == 2 else run.models[repeat]
    if not len(models):
        raise InputError("server", server, "no server's own model was released; leave it out")
    return np.asarray(models[whole("server", server, 0, len(models) - 1)])


def _released(path: Path, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
    """A deployment knows its features by their order alone."""
    import polars as pl

    from confide.problems import model_file

    w, meta = model_file.read(path)
    kind = meta["model"]["kind"]
    model = named(kind, meta["model"]["rho"])
    if model is None:
        raise InputError("model", str(path), f"is of the kind {kind!r}; only its own code can apply it")
    M, width = model.features(len(w)), frame.width
    remedy = f"must have {M} columns of numbers, in the order of training, and the target last if it is known"
    try:
        table = frame.cast(pl.Float64).to_numpy()
    except pl.exceptions.PolarsError:
        raise InputError("table", f"{width} columns", remedy) from None
    if width not in (M, M + 1) or not np.isfinite(table).all():
        raise InputError("table", f"{width} columns", remedy)
    X = table[:, :M]
    return pl.DataFrame(_columns(model, model.predict(w, X))), model.metrics(w, X, table[:, M]) if width > M else {}


def _columns(model: BuiltIn, scores: Floats) -> dict[str, Floats]:
    """A prediction and, of a label, its probability: of +1 for a logistic model, of the one predicted for softmax."""
    if isinstance(model, Linear):
        return {"prediction": scores}
    if isinstance(model, Softmax):
        return {"probability": scores.max(axis=1), "prediction": scores.argmax(axis=1).astype(np.float64)}
    return {"probability": scores, "prediction": np.sign(scores - 0.5)}


def _metrics(model: BuiltIn, w: Any, X: Any, frame: pl.DataFrame, label: dict[str, Any]) -> dict[str, float]:
    if label["name"] not in frame.columns:
        return {}
    if "positive" not in label:
        d = frame[label["name"]].cast(float, strict=False).to_numpy()
        known = np.isfinite(d)
    else:
        text = words(frame, label["name"], "table").to_numpy()
        d = np.where(text == str(label["positive"]), 1.0, -1.0)
        known = np.isin(text, [str(label["positive"]), str(label["negative"])])
    return model.metrics(w, X[known], d[known]) if known.any() else {}
