"""A deployment in a box: the very machines of servers and clients in one process, in virtual time, with any fault.

    from confide.deploy import agree
    from confide.testing import Weather, forged_units, rehearse

    units = forged_units(P=3, K=4)                         # keys that nobody holds
    plan = agree("run.toml", units, model="own", features=10)
    played = rehearse(plan, train="my_training:train", weather=Weather(loss=0.1, calm=600.0))
    played.models, played.ledgers, played.failed

All randomness comes from a seed, so nothing in a box is private: use data that need no protection. docs/network.md has
more. Names are loaded when they are first used. Below them:

network     the box: messages on their way, machines that die and return
rehearsal   units of a plan with clients that train, and units whose clients send numbers from a script
secure_sessions   one secure sum by itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confide.base.lazy import lazy

if TYPE_CHECKING:
    from confide.testing.network import Cut as Cut
    from confide.testing.network import Network as Network
    from confide.testing.network import Weather as Weather
    from confide.testing.rehearsal import Rehearsal as Rehearsal
    from confide.testing.rehearsal import forged_units as forged_units
    from confide.testing.rehearsal import rehearse as rehearse

_HOME = {
    "Cut": "confide.testing.network",
    "Network": "confide.testing.network",
    "Rehearsal": "confide.testing.rehearsal",
    "Weather": "confide.testing.network",
    "forged_units": "confide.testing.rehearsal",
    "rehearse": "confide.testing.rehearsal",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
