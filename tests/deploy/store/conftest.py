"""Folders in memory: no test here cuts the power, and a disk takes its time for every commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def tmp_path(histories: SimpleNamespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=histories.MEMORY) as folder:
        yield Path(folder)
