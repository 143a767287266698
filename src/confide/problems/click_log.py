"""Click-through prediction: Avazu's log as Kaggle ships it, or a synthetic log with the same columns.

The paper's classification experiment: 5,101 rows split unequally over 50 clients, noise of its own on every
client's features, 256 clean rows to test on. At the natural click rate (0.17) a model of these features
predicts "no click" everywhere and the test error says nothing, so the classes are balanced by default.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.files import Source
from confide.base.randomness import Purpose, generator
from confide.base.validation import number, one_of, positive_int, whole
from confide.problems import splits
from confide.problems.features import FeatureMap
from confide.problems.federation import Federation
from confide.problems.models import Logistic
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig
from confide.problems.reading import absolute, plain, read_pieces, scan_table

if TYPE_CHECKING:
    import polars as pl


SYNTHETIC: Final = "synthetic click log: no Avazu file was given"

# The features: distinct values of each field in the synthetic log and the exponent of their popularity,
# rank^-exponent, both after the real log. Not features: `id`, a row's name, and `device_id` and `device_ip`,
# which are near-unique: they teach nothing that carries over to a new row, and a list of the frequent ones
# would publish who was in the training set.
FIELDS: Final[dict[str, tuple[int, float]]] = {
    "hour": (24, 0.2),
    "C1": (6, 3.0),
    "banner_pos": (5, 1.6),
    "site_id": (600, 1.3),
    "site_domain": (500, 1.3),
    "site_category": (14, 1.3),
    "app_id": (400, 1.6),
    "app_domain": (39, 2.0),
    "app_category": (16, 2.0),
    "device_model": (1300, 0.8),
    "device_type": (4, 3.0),
    "device_conn_type": (4, 3.0),
    "C14": (900, 0.7),
    "C15": (6, 3.0),
    "C16": (7, 3.0),
    "C17": (340, 0.9),
    "C18": (4, 1.0),
    "C19": (60, 1.2),
    "C20": (120, 1.3),
    "C21": (59, 1.0),
}
COLUMNS: Final = (
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model", "device_type"),
    *("device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
)
UNDECLARED: Final = (
    "a click log is drawn, balanced and dealt out over clients as one table, so that one row more changes what "
    'everybody holds: for experiments; problem.name = "table" has columns that say whose a row is'
)
_ROWS, _LOG, _NOISE = 4, 5, 6  # streams of this file
_RATE, _EFFECT = -2.0, 0.55  # logit of a click on average; strength of the most frequent values


class ClicksConfig(ProblemConfig):
    sized_by: ClassVar = ("rows", "test_rows", "buckets")
    name: Literal["clicks"] = Field(description="who clicks, from Avazu's log or a synthetic one with its columns")
    path: str | None = Field(None, description="Avazu's train file (.csv or .gz); a synthetic log by default")
    units: int = Field(5, description="P")
    clients: int = Field(10, description="K, of each unit")
    rows: int = Field(5101, description="training rows of all clients together, split unequally")
    test_rows: int = Field(256, description="held-out rows")
    encoding: str = Field("top", description="top (the frequent values of each field) or hash (all into buckets)")
    top: int = Field(5, description="of encoding = top: how many values of each field")
    buckets: int = Field(128, description="of encoding = hash: for all fields together")
    balance: bool = Field(True, description="as many clicks as others, in training and test")
    feature_noise: float = Field(0.3, description="strongest disturbance of a client's features; a row has norm 1")
    unit_rows: bool = Field(True, description="scale the features of a row to norm 1; without it sqrt(20)")
    rho: float = Field(0.03, description="regulariser rho |w|^2")
    seed: int | None = Field(None, description="of log, split and noise; the top-level seed by default")

    def make(self, seed: int) -> Problem:
        return clicks(**self.arguments(seed))

    def memory(self) -> int:
        return 8 * 3 * (self.rows + self.test_rows) * (self.buckets if self.encoding == "hash" else 1)


def clicks(
    path: str | Path | None = None,
    *,
    units: int = 5,
    clients: int = 10,
    rows: int = 5101,
    test_rows: int = 256,
    encoding: str = "top",
    top: int = 5,
    buckets: int = 128,
    balance: bool = True,
    feature_noise: float = 0.3,
    unit_rows: bool = True,
    rho: float = 0.03,
    seed: int = 0,
) -> Problem:
    """Who clicks, learnt by `Logistic` from one-hot features of norm 1 and an intercept of 1.

    Args:
        units, clients: P, and K of every unit.
        path: Avazu's train file (.csv or .gz); None makes a synthetic log, and `Problem.notes` says so.
        rows: training rows of all clients together, drawn without replacement; `test_rows` are others.
        encoding: "top" (each field's `top` most frequent values) or "hash" (all fields into `buckets`).
        balance: as many clicks as others, in training and test. Where the file has too few clicks, fewer rows
            than asked are used and a note says how many.
        feature_noise: largest strength of a client's own disturbance, in units of a row's norm (`disturb`).
        unit_rows: divide the one-hot features by the root of the number of fields; without it a row has norm
            sqrt(20), which the regulariser shrinks less and which the step-size must allow for.
        rho: of the regulariser rho |w|^2, at least 0.
        seed: of the drawing of rows and of the disturbances.

    Returns:
        A problem with `test_rows` rows held out.

    Raises:
        InputError: a number is out of its range, or the file is not such a log.

    >>> clicks(rows=200, test_rows=50, encoding="hash", buckets=32).federation
    Federation(units=5, clients=50, samples=200, features=33)
    """
    spec = dict(locals(), name="clicks", path=path and absolute(path, "problem.path"))
    for name in ("units", "clients", "rows", "top", "buckets"):
        positive_int(f"problem.{name}", spec[name])
    whole("problem.test_rows", test_rows, 0)
    whole("problem.seed", seed, 0)
    one_of("problem.encoding", encoding, ("top", "hash"))
    for name in ("balance", "unit_rows"):
        if not isinstance(spec[name], bool):
            raise InputError(f"problem.{name}", spec[name], "must be true or false")
    number("problem.feature_noise", feature_noise, 0.0)
    model = Logistic(number("problem.rho", rho, 0.0))

    source = None if path is None else Source.of(path)
    train, test, notes = _rows(path, rows, test_rows, balance, seed)
    if source is not None:
        source.check("problem.path")
    names, listed = list(FIELDS), encoding == "top"
    made = FeatureMap.fit(
        train,
        categorical=names if listed else (),
        hashed=() if listed else names,
        # the synthetic log's values are known, so nothing is computed from its rows
        categories={f: vocabulary(f)[:top] for f in names} if path is None and listed else None,
        top=top,
        buckets=buckets,
        last={"hour": 2},
        unit_rows=unit_rows,
        refuse_constant=False,
    )
    if made.computed:
        notes = (*notes, FeatureMap.NOTE)
    client_of_row = splits.unequal(train.height, units, clients, seed)
    unit_of_client = np.repeat(np.arange(units), clients)
    norm = 1.0 if unit_rows else math.sqrt(len(FIELDS))
    X = disturb(made.apply(train, "problem.path"), client_of_row, norm * feature_noise, seed)
    return Problem(
        Federation.from_assignment(X, _sign(train), client_of_row, unit_of_client),
        model,
        (made.apply(test, "problem.path"), _sign(test)) if test_rows else None,
        plain(spec),
        notes,
        {**made.to_dict(), "label": {"name": "click", "task": "binary", "negative": "0", "positive": "1"}},
        private=path is not None,
        undeclared=() if path is None else (UNDECLARED,),
        source=source,
    )


def synthetic_log(rows: int, seed: int) -> tuple[pl.DataFrame, Floats]:
    """A log with Kaggle's columns, and the probability with which each click was drawn.

    Values are popular as rank^-exponent. Their effects on the logit are fixed (one known model, whatever the
    seed) and independent between fields: the best AUC is about 0.79, the click rate about 0.17.
    """

    import polars as pl

    positive_int("problem.rows", rows)
    logit = np.full(rows, _RATE)
    made: dict[str, pl.Series] = {}
    for j, (name, (size, exponent)) in enumerate(FIELDS.items()):
        popularity = np.cumsum(np.arange(1.0, size + 1) ** -exponent)
        u = generator(seed, Purpose.DATA, _LOG, j).random(rows)
        rank = np.searchsorted(popularity, u * popularity[-1], side="right")
        logit += effects(name)[rank]
        made[name] = pl.Series(vocabulary(name))[rank]
    g = generator(seed, Purpose.DATA, _LOG, len(FIELDS))
    probability = 1.0 / (1.0 + np.exp(-logit))
    made["click"] = pl.Series((g.random(rows) < probability).astype(np.int64))
    day = pl.Series(g.integers(141021, 141031, rows)).cast(pl.String)
    made["hour"] = (day + made["hour"]).cast(pl.Int64)
    made["id"] = pl.Series(g.integers(0, 2**64, rows, dtype=np.uint64))
    for name in ("device_id", "device_ip"):
        made[name] = pl.Series([f"{v:08x}" for v in g.integers(0, 2**32, rows)])
    return pl.DataFrame({c: made[c] for c in COLUMNS}), probability


def vocabulary(field: str) -> list[str]:
    """Every value a field of the synthetic log can take, most popular first: hours, small codes or hex."""
    size = FIELDS[field][0]
    if field == "hour":
        return [f"{(h * 7 + 13) % 24:02d}" for h in range(24)]
    if field.startswith("C") or size < 10:
        return [str(v) for v in range(size)]
    return [blake2b(f"{field} {rank}".encode(), digest_size=4).hexdigest() for rank in range(size)]


def effects(field: str) -> Floats:
    """What each value of `vocabulary` adds to the logit of a click: rare values less, nothing on average."""
    size, exponent = FIELDS[field]
    rank = np.arange(1.0, size + 1)
    z = generator(0, Purpose.DATA, _LOG, list(FIELDS).index(field), 1).standard_normal(size)
    effect: Floats = _EFFECT * z * rank**-0.25
    effect -= np.average(effect, weights=rank**-exponent)
    return effect


def disturb(X: Floats, client_of_row: Ints, feature_noise: float, seed: int) -> Floats:
    """Each client's rows, moved by a shift of its own plus fresh Gaussian noise; the intercept stays.

    Client c draws s_c uniform in [0, feature_noise], then a shift and one noise a row, all N(0, s_c^2 I / M):
    each has a norm of about s_c, beside a row's norm of 1.
    """
    moved = X.copy()
    M = X.shape[1] - 1
    order = np.argsort(client_of_row, kind="stable")
    starts = np.searchsorted(client_of_row[order], np.arange(int(client_of_row.max()) + 2))
    for c in range(len(starts) - 1):
        rows = order[starts[c] : starts[c + 1]]
        g = generator(seed, Purpose.DATA, _NOISE, c)
        s = g.uniform(0.0, feature_noise) / math.sqrt(M)
        shift = g.standard_normal(M)
        moved[rows, :M] += s * (shift + g.standard_normal((len(rows), M)))
    return moved


def _rows(
    path: str | Path | None, rows: int, test_rows: int, balance: bool, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame, tuple[str, ...]]:
    """Training rows, test rows and what is to be said of them."""

    import polars as pl

    if path is None:
        wanted = rows + test_rows
        log, _ = synthetic_log(math.ceil(wanted / 2 / 0.14) + 200 if balance else wanted, seed)
        clicked = log["click"].to_numpy() == 1
        train, test, notes = _draw(clicked, rows, test_rows, balance, seed)
        return log[train], log[test], (SYNTHETIC, *notes)
    lazy = scan_table(path, "problem.path")
    absent = [c for c in ("click", *FIELDS) if c not in lazy.collect_schema()]
    if absent:
        remedy = f"no column {absent[0]}; give Avazu's train file as Kaggle ships it"
        raise InputError("problem.path", str(path), remedy)
    # Two passes, the first over the labels alone: forty million rows are never held at once.
    ended = pl.col(COLUMNS[-1]).is_not_null()  # the last column: blank where a row was cut short
    label = pl.when(ended).then(pl.col("click").cast(pl.Int8, strict=False))
    pieces = read_pieces(path, "problem.path", ["click", COLUMNS[-1]])
    labels = [piece.select(label.fill_null(-1)).to_series().to_numpy() for piece in pieces]
    click = np.concatenate([np.zeros(0, np.int8), *labels])
    wrong = np.flatnonzero((click != 0) & (click != 1))
    if len(wrong):
        what = f"row {wrong[0] + 1} is cut short or its click is neither 0 nor 1"
        raise InputError("problem.path", str(path), f"{what}; mend it, or is the file truncated?")
    train, test, notes = _draw(click == 1, rows, test_rows, balance, seed)
    picked = np.sort(np.concatenate([train, test]))
    found, first = [], 0
    for piece in read_pieces(path, "problem.path", ["click", *FIELDS]):
        begin, end = np.searchsorted(picked, [first, first + piece.height])
        found.append(piece[picked[begin:end] - first])
        first += piece.height
    frame = pl.concat(found)
    return frame[np.searchsorted(picked, train)], frame[np.searchsorted(picked, test)], notes


def _draw(
    clicked: NDArray[np.bool_], rows: int, test_rows: int, balance: bool, seed: int
) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Numbers of the training and of the test rows, in random order."""
    g = generator(seed, Purpose.SPLIT, _ROWS)
    if not balance:
        if rows + test_rows > len(clicked):
            remedy = f"with {test_rows} test rows the file's {len(clicked)} rows leave {len(clicked) - test_rows}"
            raise InputError("problem.rows", rows, f"{remedy}; ask for at most that many")
        order = g.permutation(len(clicked))
        return order[:rows], order[rows : rows + test_rows], ()
    of_class = [g.permutation(np.flatnonzero(clicked == c)) for c in (False, True)]
    fewest = min(len(c) for c in of_class)
    test_each = [test_rows - test_rows // 2, test_rows // 2]
    spare = fewest - test_each[0]
    if spare < 1:
        counts = f"the file has {len(of_class[1])} clicks and {len(of_class[0])} others"
        remedy = f"{counts}, too few for a balanced test and training set; ask for fewer or set balance = false"
        raise InputError("problem.test_rows", test_rows, remedy)
    used = min(rows, 2 * spare)
    train_each = [used - used // 2, used // 2]
    test = np.concatenate([c[:n] for c, n in zip(of_class, test_each, strict=True)])
    train = np.concatenate([c[n : n + m] for c, n, m in zip(of_class, test_each, train_each, strict=True)])
    few = f"balanced classes: {used} training rows of the {rows} asked (the rarer class has {fewest} rows)"
    return g.permutation(train), g.permutation(test), (few,) if used < rows else ()


def _sign(frame: pl.DataFrame) -> Floats:
    import polars as pl

    return np.where(frame["click"].cast(pl.Int8).to_numpy() == 1, 1.0, -1.0)
