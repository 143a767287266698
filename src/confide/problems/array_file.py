"""The user's own arrays: rows of numbers, such as images, with their labels in an .npz or a Parquet file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.files import Source
from confide.base.validation import number, positive
from confide.problems.dealing import NO_TEST, Deal, DealtConfig, Owners
from confide.problems.federation import Federation, arranged
from confide.problems.models import Linear, Model
from confide.problems.networks.named import WITH_CLASSES
from confide.problems.networks.named import model as model_named
from confide.problems.networks.network import Network
from confide.problems.problem import Problem
from confide.problems.reading import absolute, naming_errors, plain, scan_table

if TYPE_CHECKING:
    import polars as pl


Numbers = NDArray[Any]
BLOCK: Final = 1 << 18  # rows that are checked at a time
ENDINGS: Final = (".npz", ".parquet")
COUNTED: Final = "the number of classes is computed from everybody's labels; declare it: classes = 10"


MODEL: Final = "linear, logistic (labels -1 and +1), softmax, mlp, cnn (square images) or my_module:network"
HIDDEN: Final = "widths of the layers of mlp, [200] by default; of cnn the channels of its convolutions"
FRAMEWORK: Final = "jax or torch, for mlp and cnn; the first that is installed by default"
WEIGHTS: Final = "safetensors file with the first weights of a network; its own by default"


class ArraysConfig(DealtConfig):
    entry_points: ClassVar = frozenset({"model"})
    name: Literal["arrays"] = Field(description="arrays of your own, one row of numbers an example, such as images")
    path: str = Field(description="an .npz with arrays X and y, or a Parquet file with a column of lists")
    features: str = Field("X", description="array, or column of lists, with the features; images become flat rows")
    label: str = Field("y", description="array or column with the labels")
    model: str = Field("softmax", description=MODEL)
    classes: int | None = Field(
        None, description="labels are 0, 1, ... below it; else one more than the largest, which no epsilon covers"
    )
    hidden: list[int] | None = Field(None, description=HIDDEN)
    framework: str | None = Field(None, description=FRAMEWORK)
    weights: str | None = Field(None, description=WEIGHTS)
    scale: float = Field(1.0, description="that every feature is divided by, such as 255")
    rho: float | None = Field(None, description="regulariser rho |w|^2; 0 by default, or what a network of yours says")

    def make(self, seed: int) -> Problem:
        return arrays(**self.arguments(seed))


def arrays(
    path: str | Path,
    *,
    features: str = "X",
    label: str = "y",
    model: str = "softmax",
    classes: int | None = None,
    hidden: Sequence[int] | None = None,
    framework: str | None = None,
    weights: str | Path | None = None,
    scale: float = 1.0,
    unit: str | None = None,
    client: str | None = None,
    units: int | None = None,
    clients: int | None = None,
    split: str = "columns",
    alpha: float | None = None,
    rho: float | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Problem:
    """A file of arrays as a problem: what X holds are the features, to which nothing is added.

    An .npz that is not compressed is mapped into memory, and its rows are copied once, in single precision where the
    file has no more: integers of up to 16 bits and floats of up to 32 become float32, all others float64.

    Args:
        path: of an .npz or a Parquet file; a config names it relative to where the command runs.
        features: of the array in the .npz, in which one row is one sample (of any shape, flattened), or of the column
            of the Parquet file, whose lists must all be equally long.
        label: of the array or column of labels: any number for "linear", -1 and +1 for "logistic", whole numbers from
            0 for "softmax" and networks that classify.
        model: "linear", "logistic", "softmax", a built-in network ("mlp", or "cnn" of square images), or the name of
            your own, "my_module:network".
        classes: of "softmax", "mlp" and "cnn". Left out, it is one more than the largest label of all rows, which no
            epsilon covers.
        hidden: widths of the layers of "mlp", (200,) by default; of "cnn" the channels of its convolutions.
        framework: "jax" or "torch", for "mlp" and "cnn".
        weights: safetensors file with the first weights of a network.
        scale: a number that you know without the rows.
        unit, client: with ``split = "columns"``, the arrays or columns that say whose a row is.
        units, clients: with any other split, how many units and how many clients in each.
        alpha: concentration of ``split = "dirichlet"``, by label (tenths of the labels for "linear").
        rho: of the regulariser rho |w|^2, at least 0; 0 by default, or what your own network says.
        test_fraction: held out of every client's rows, by their place alone; every client keeps a training row.
        seed: of the split and of what is held out.

    Returns:
        A problem on somebody's data (`Problem.private`).

    Raises:
        InputError: the file, an array in it or an option cannot be used.
    """
    spec = dict(locals(), name="arrays", path=absolute(path, "problem.path"))
    spec["weights"] = weights and absolute(weights, "problem.weights")
    how = Deal(unit, client, units, clients, split, alpha, test_fraction, seed)
    if rho is not None:
        number("problem.rho", rho, 0.0)
    positive("problem.scale", scale)
    named = _named(features=features, label=label, unit=unit, client=client)

    source = Source.of(path)
    X, d, who = _read(path, named)
    counted = () if classes is not None or model not in WITH_CLASSES else (COUNTED,)
    made = model_named(
        model,
        features=X.shape[1],
        classes=_classes(d) if counted else classes,
        rho=rho,
        hidden=hidden,
        framework=framework,
        weights=weights,
    )
    owners = how.owners(who, d, classes=_classifies(made))
    federation, test = parts(X, d, how, owners, scale)
    source.check("problem.path")
    return Problem(
        federation,
        made,
        test,
        plain(spec),
        (NO_TEST,) if test is None and test_fraction > 0 else (),
        undeclared=counted + how.undeclared,
        source=source,
    )


def _classifies(model: Model) -> bool:
    return model.classes is not None if isinstance(model, Network) else not isinstance(model, Linear)


def parts(
    X: Numbers, d: Floats, how: Deal, owners: Owners, scale: float
) -> tuple[Federation, tuple[Floats, Floats] | None]:
    """The training rows by unit and client, and the held-out rows, if any: each row of X is copied once."""
    test = how.held_out(owners)
    kept = np.flatnonzero(~test)
    rows, *offsets = arranged(owners.client_of_row[kept], owners.unit_of_client)
    rows = kept[rows]
    held = (_scaled(X[test], scale), d[test]) if test.any() else None
    return Federation(_scaled(X[rows], scale), d[rows], *offsets), held


def _scaled(X: Numbers, scale: float) -> Floats:
    """A copy of rows as floats, divided in place."""
    short = X.dtype.itemsize <= (4 if X.dtype.kind == "f" else 2)
    found: Floats = X.astype(np.float32 if short else np.float64, copy=False)
    if scale == 1.0:
        return found
    with np.errstate(all="ignore"):
        np.divide(found, scale, out=found)
    if not (np.isfinite(found.min()) and np.isfinite(found.max())):
        raise InputError("problem.scale", scale, "is so small that features divided by it are no numbers any more")
    return found


def _named(**columns: str | None) -> dict[str, str]:
    """What each name says, features and labels first."""
    used: dict[str, str] = {}
    for role, name in columns.items():
        if name is None:
            continue
        if not (isinstance(name, str) and name):
            raise InputError(f"problem.{role}", name, "must be the name of an array or column")
        if name in used:
            raise InputError(f"problem.{role}", name, f"is used already, as {used[name]}; name it once")
        used[name] = role
    return used


def _read(path: str | Path, named: dict[str, str]) -> tuple[Numbers, Floats, pl.DataFrame]:
    """Features, one row a sample, labels, and the columns that say whose a row is."""
    import polars as pl

    file = Path(path)
    if file.suffix.lower() not in ENDINGS:
        raise InputError("problem.path", str(path), f"unknown kind of file; use one of {' '.join(ENDINGS)}")
    features, label, *whose = named
    if file.suffix.lower() == ".npz":
        found = _npz(file, named)
        X = _rows(found[features], features)
        who = pl.DataFrame({name: _column(found[name], name, named[name], len(X)) for name in whose})
        return X, _labels(found[label], label, len(X)), who
    frame = _parquet(path, named)
    X = _rows(_lists(frame[features]), features)
    return X, _labels(_plain(frame[label], "label"), label, len(X)), frame.select(whose)


def _rows(X: Numbers, name: str) -> Numbers:
    _numeric(X, "features", name)
    if X.ndim < 2 or not X.size:
        raise InputError("problem.features", name, f"has shape {X.shape}; one row of features a sample is needed")
    X = X.reshape(len(X), -1)
    for start in range(0, len(X) if X.dtype.kind == "f" else 0, BLOCK):
        finite = np.isfinite(X[start : start + BLOCK]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise InputError("problem.features", name, f"row {row + 1} holds NaN or infinity; mend it or drop the row")
    return X


def _labels(y: Numbers, name: str, rows: int) -> Floats:
    _numeric(y, "label", name)
    if y.shape != (rows,):
        raise InputError("problem.label", name, f"has shape {y.shape}; one label a row is needed, shape ({rows},)")
    d = np.array(y, np.float64)
    if not np.isfinite(d).all():
        row = int(np.argmin(np.isfinite(d)))
        raise InputError("problem.label", name, f"row {row + 1} has no label; mend it or drop the row")
    return d


def _classes(d: Floats) -> int:
    """One more than the largest label, where labels can be classes at all; what else they must be the model says."""
    most = int(min(max(d.max(), 1.0), 2.0**31))
    if most > max(1, len(d)):
        remedy = f"there are labels up to {d.max():g} and {len(d)} rows: are they classes? Say how many: classes = 10"
        raise InputError("problem.classes", None, remedy)
    return most + 1


def _known(named: dict[str, str], held: list[str]) -> None:
    for name, role in named.items():
        if name not in held:
            more = ", ..." if len(held) > 10 else ""
            raise InputError(
                f"problem.{role}", name, f"no such array or column; the file has {', '.join(held[:10])}{more}"
            )


def _numeric(a: Numbers, role: str, name: str) -> None:
    if a.dtype.kind not in "fiub":
        raise InputError(f"problem.{role}", name, f"is of {a.dtype}; must be an array of numbers")


# ---- .npz


def _npz(file: Path, named: dict[str, str]) -> dict[str, Numbers]:
    if not file.is_file():
        raise InputError("problem.path", str(file), "no such file; check the path")
    try:
        with ZipFile(file) as archive:
            _known(named, [name.removesuffix(".npy") for name in archive.namelist()])
            return {name: _array(archive, file, f"{name}.npy") for name in named}
    except InputError:
        raise
    except OSError as e:
        raise InputError("problem.path", str(file), f"cannot be read ({e.strerror or e})") from None
    except Exception as e:  # whatever a damaged file leads to
        said = str(e).splitlines()[0] if str(e) else type(e).__name__
        remedy = f"is no .npz of numbers ({said}); pickled objects are not read: np.savez(file, X=X, y=y)"
        raise InputError("problem.path", str(file), remedy) from None


def _array(archive: ZipFile, file: Path, member: str) -> Numbers:
    """Mapped into memory where the bytes of the array lie in the file as they are, else read."""
    info = archive.getinfo(member)
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if info.compress_type != ZIP_STORED or version not in _HEADERS:
            stream.seek(0)
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        shape, columns_first, dtype = _HEADERS[version](stream)
        within = stream.tell()
    if dtype.hasobject:
        raise ValueError("it holds objects")
    with open(file, "rb") as raw:  # a member's name and extra field stand before its bytes, as long as these say
        raw.seek(info.header_offset + 26)
        lengths = struct.unpack("<HH", raw.read(4))
    start = info.header_offset + 30 + sum(lengths) + within
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if columns_first else "C")


_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _column(a: Numbers, name: str, role: str, rows: int) -> Numbers:
    if a.shape != (rows,):
        raise InputError(f"problem.{role}", name, f"has shape {a.shape}; one entry a row is needed, shape ({rows},)")
    return a.astype(str) if a.dtype.kind == "S" else np.asarray(a)


# ---- Parquet


def _parquet(path: str | Path, named: dict[str, str]) -> pl.DataFrame:
    lazy = scan_table(path, "problem.path")
    with naming_errors(path, "problem.path"):
        _known(named, lazy.collect_schema().names())
        frame = lazy.select(list(named)).collect(engine="streaming")
    if frame.height == 0:
        raise InputError("problem.path", str(path), "holds no row; give a file with data")
    return frame


def _lists(column: pl.Series) -> Numbers:
    """A column of lists, or of lists of lists, as rows of numbers."""
    import polars as pl

    name, rows, flat = column.name, len(column), column
    if not isinstance(flat.dtype, pl.List | pl.Array):
        remedy = 'holds no lists; where every feature has a column of its own use problem.name = "table"'
        raise InputError("problem.features", name, remedy)
    while isinstance(flat.dtype, pl.List | pl.Array):
        flat = flat.arr.to_list() if isinstance(flat.dtype, pl.Array) else flat
        lengths = flat.list.len().unique().sort().to_list()  # a missing list first
        if len(lengths) != 1 or not lengths[0]:
            said = "misses lists" if lengths[0] is None else f"has lists of {lengths[0]} to {lengths[-1]} entries"
            raise InputError("problem.features", name, f"{said}; all must have equally many, at least one")
        flat = flat.explode()
    if flat.null_count():
        row = int(flat.is_null().arg_true()[0]) // (len(flat) // rows)
        raise InputError("problem.features", name, f"row {row + 1} lacks a number; fill it in or drop the row")
    return _plain(flat, "features").reshape(rows, -1)


def _plain(column: pl.Series, role: str) -> Numbers:
    import polars as pl

    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise InputError(f"problem.{role}", column.name, f"is of {column.dtype}; must be a column of numbers")
    return column.to_numpy()
