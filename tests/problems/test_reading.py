"""A file read piece by piece is the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.problems import reading
from confide.problems.reading import read_pieces, read_table

WORD = st.text("ab1é ", min_size=1, max_size=4).map(lambda word: f"x{word}x")


@pytest.mark.filterwarnings("ignore:.*function-scoped")
@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=1, max_size=12), st.integers(1, 60), st.sampled_from(["", "\n"]))
def test_pieces_of_any_size_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], size: int, end: str
) -> None:
    text = "\n".join(",".join(row) for row in [("a", "b", "c"), *rows]) + end
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "t.csv").write_text(text, encoding="utf-8")
    (folder / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    whole = read_table(folder / "t.csv", "path")
    whole.write_parquet(folder / "t.parquet")
    with pytest.MonkeyPatch.context() as small:
        small.setattr(reading, "PIECE_BYTES", size + len("a,b,c\n"))
        small.setattr(reading, "PIECE_ROWS", 1 + size // 8)
        for name in ("t.csv", "t.csv.gz", "t.parquet"):
            assert pl.concat(read_pieces(folder / name, "path", ["c", "a"])).equals(whole.select("c", "a")), name


def test_a_gzipped_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"{n},{n * n}\n" for n in range(-1, 20000)).encode())
    for kept in (packed[:-9], packed[: len(packed) // 2], packed[:-5] + b"x" + packed[-4:]):
        (tmp_path / "t.csv.gz").write_bytes(kept)
        with pytest.raises(InputError, match="truncated or damaged"):
            list(read_pieces(tmp_path / "t.csv.gz", "problem.path", ["-1"]))
