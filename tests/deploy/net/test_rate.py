"""How often a peer may ask; and nobody makes a server remember him by coming once."""

from __future__ import annotations

from confide.deploy.net.rate import KNOWN, Rate


def test_peers_that_come_once_are_forgotten() -> None:
    """An organisation can sign a million certificates, and dial once with each."""
    now = 0.0
    rate = Rate(2, 30.0, lambda: now)
    for n in range(20 * KNOWN):
        now += 1.0
        assert rate.allows(n)
        assert len(rate._free) <= KNOWN + 1
    assert rate.allows(n)
    assert not rate.allows(n)  # who is not free yet is known
