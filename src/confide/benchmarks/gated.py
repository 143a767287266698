"""The training of `confide bench deploy`: none at all, once the gate is open. The gate is a lock on a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def train(weights: NDArray[np.float64], round: int, config: Mapping[str, Any]) -> NDArray[np.float64]:
    """Zeros, when whoever holds the file config["gate"] lets go of it (or is gone)."""
    fd = os.open(config["gate"], os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    return np.zeros_like(weights)
