"""Commands that run in this process set up their own log; pytest's comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("confide")
    before = root.handlers[:], root.level, ours.handlers[:], ours.level
    yield
    root.handlers[:], ours.handlers[:] = before[0], before[2]
    root.setLevel(before[1])
    ours.setLevel(before[3])
