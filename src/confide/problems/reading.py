"""Tables from files: CSV, gzipped or not, and Parquet; whatever is wrong with one is one line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from confide.base.errors import InputError

if TYPE_CHECKING:
    import polars as pl

PIECE_BYTES, PIECE_ROWS = 2**25, 2**19  # read at a time
SUFFIXES: Final = (".csv", ".csv.gz", ".gz", ".tsv", ".tsv.gz", ".parquet")


def read_table(path: str | Path, field: str) -> pl.DataFrame:
    """A CSV (.csv, .tsv, .gz) or Parquet file; whatever is wrong with it is one line that names `field`.

    The columns of a CSV stay text, so that "007" is a category of its own in every file; `features.numbers`
    parses those that are numbers.
    """
    lazy = scan_table(path, field)
    with naming_errors(path, field):
        frame = lazy.collect(engine="streaming")
    if frame.height == 0:
        raise InputError(field, str(path), "holds no row; give a table with data")
    if not str(path).lower().endswith(".parquet"):
        _refuse_short_rows(frame, path, field)
    return frame


def scan_table(path: object, field: str) -> pl.LazyFrame:
    """The same file, not read yet (`clicks` picks a few rows out of forty million)."""

    import polars as pl

    file = Path(absolute(path, field))
    if file.is_dir():
        raise InputError(field, str(path), "is a folder; give a CSV or Parquet file")
    if not file.exists():
        raise InputError(field, str(path), "no such file; check the path")
    if not file.name.lower().endswith(SUFFIXES):
        raise InputError(field, str(path), f"unknown kind of file; use one of {' '.join(SUFFIXES)}")
    if file.stat().st_size == 0:
        raise InputError(field, str(path), "is empty; give a table with a header and data")
    with naming_errors(path, field):
        if file.name.lower().endswith(".parquet"):
            lazy = pl.scan_parquet(file, glob=False)
        else:
            lazy = pl.scan_csv(file, separator=_separator(file), infer_schema=False, glob=False)
        names = lazy.collect_schema().names()
    for name in names:
        if "\ufffd" in name:
            raise InputError(field, str(path), "is not UTF-8; save it as UTF-8")
        twice = re.fullmatch(r"(.*)_duplicated_\d+", name)
        if twice and twice[1] in names:
            raise InputError(field, str(path), f"has two columns {twice[1]!r}; rename one")
    return lazy


def read_pieces(path: str | Path, field: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Some columns of the same file, so many rows at a time that a file of any length takes little memory.

    A CSV's columns are text, and a row stands in one line.
    """
    import polars as pl

    lazy = scan_table(path, field)
    if str(path).lower().endswith(".parquet"):
        with naming_errors(path, field):
            rows = lazy.select(pl.len()).collect().item()
            for first in range(0, rows, PIECE_ROWS):
                yield lazy.select(columns).slice(first, PIECE_ROWS).collect(engine="streaming")
        return
    with naming_errors(path, field):
        for lines in _lines(Path(path)):
            yield pl.read_csv(lines, separator=_separator(Path(path)), infer_schema=False).select(columns)


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a CSV, gzipped or not, each time with its first line before them."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            head, begun = file.readline(PIECE_BYTES), b""
            while more := file.read(PIECE_BYTES):
                lines, newline, rest = (begun + more).rpartition(b"\n")
                if newline:
                    yield head + lines
                begun = rest
    except (EOFError, zlib.error) as e:
        raise OSError(f"corrupt: {e}") from None
    if begun:
        yield head + begun


def absolute(path: object, field: str) -> str:
    if isinstance(path, str | Path) and str(path) and "\0" not in str(path):
        return str(Path(path).absolute())
    raise InputError(field, path, "must be the path of a file")


def plain(spec: Mapping[str, object]) -> dict[str, object]:
    """Arguments as JSON would give them back: lists for tuples, Python's numbers for NumPy's."""
    made: dict[str, object] = json.loads(
        json.dumps(spec, default=lambda v: dict(v) if isinstance(v, Mapping) else np.asarray(v).tolist())
    )
    return made


@contextmanager
def naming_errors(path: object, field: str) -> Iterator[None]:
    """What polars says of a file it cannot read, as one line of ours."""

    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as e:
        raise InputError(field, str(path), _remedy(str(e))) from None


def _remedy(said: str) -> str:
    for pattern, remedy in (
        ("utf-8", "is not UTF-8; save it as UTF-8"),
        ("empty CSV", "is empty; give a table with a header and data"),
        ("more fields", "is ragged: a row has more fields than the header; quote the commas or mend the row"),
        (
            "unexpected end|must end with PAR1|12 bytes|invalid gzip|[nN]ot a gzip|CRC check|corrupt",
            "is truncated or damaged; get it again",
        ),
        ("ermission denied", "may not be read; change its permissions"),
        ("could not parse", "has a quote that never closes; mend the row"),
    ):
        if re.search(pattern, said):
            return remedy
    return f"cannot be read ({said.splitlines()[0] if said else 'no reason given'}); is it truncated or damaged?"


def _separator(file: Path) -> str:
    return "\t" if file.name.lower().endswith((".tsv", ".tsv.gz")) else ","


def _refuse_short_rows(frame: pl.DataFrame, path: str | Path, field: str) -> None:
    """polars fills a short row with nulls; count the fields where that may have happened (no quotes)."""

    import polars as pl

    if frame.width == 1 or frame[:, -1].null_count() == 0:
        return
    with naming_errors(path, field):
        lines = pl.read_csv(
            Path(path), has_header=False, separator="\x01", quote_char=None, infer_schema=False, glob=False
        ).to_series()
    if lines.str.contains('"', literal=True).any():
        return
    short = (lines.str.count_matches(_separator(Path(path)), literal=True) < frame.width - 1) & (lines != "")
    if short.any():
        row = int(short.arg_true()[0])
        what = f"is truncated or ragged: line {row + 1} has fewer fields than the header; mend or drop it"
        raise InputError(field, str(path), what)
