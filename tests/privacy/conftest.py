"""Amplification by dp-accounting is asked for again and again, for the same rate, noise and order: answered once."""

from __future__ import annotations

from functools import cache

from dp_accounting.rdp import rdp_privacy_accountant as rdp

ONE_ORDER = "_compute_rdp_sample_wor_gaussian_scalar"  # of three numbers, and of the cube of an order the time
setattr(rdp, ONE_ORDER, cache(getattr(rdp, ONE_ORDER)))
