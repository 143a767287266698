"""Both frameworks, each where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from confide.engines.device.backend import Backend, backend


@pytest.fixture(params=["jax", "torch"])
def exact(request: pytest.FixtureRequest) -> Backend:
    """A framework with doubles, on the CPU."""
    pytest.importorskip(request.param)
    return backend(request.param, "cpu", np.float64)
