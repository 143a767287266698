"""A released model as a file: weights and what everybody may know of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.problems import model_file


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    for attempt in (1, 2):
        meta = {"format": model_file.FORMAT, "model": {"kind": "linear", "rho": 0.1}, "attempt": attempt}
        path = model_file.write(tmp_path, np.arange(attempt + 1.0), meta)
        weights, known = model_file.read(path)
        assert (weights.tolist(), known) == ([0.0, 1.0, 2.0][: attempt + 1], meta)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["attempt-1.npz", "attempt-2.npz", "model.npz"]
    assert model_file.read(tmp_path / "attempt-1.npz")[1]["attempt"] == 1


def test_another_file_is_no_released_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", weights=np.zeros(2))
    for path in (tmp_path / "x.npz", tmp_path / "none.npz"):
        with pytest.raises(InputError, match="is no released model"):
            model_file.read(path)
