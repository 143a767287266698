"""confide: private learning across a graph of federations.

    import confide
    run = confide.simulate(confide.problems.regression(), confide.Graph.ring(10), rounds=500, repeats=4)

Names are loaded when they are first used, so that `import confide` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide import models as models
    from confide import problems as problems
    from confide import schemes as schemes
    from confide.algorithm import GFL as GFL
    from confide.algorithm import Failures as Failures
    from confide.clipping import Clip as Clip
    from confide.engines.driver import simulate as simulate
    from confide.errors import InputError as InputError
    from confide.errors import RunError as RunError
    from confide.federation import Federation as Federation
    from confide.graph import Graph as Graph
    from confide.privacy.accountant import account as account
    from confide.privacy.calibrate import Budget as Budget
    from confide.privacy.planner import plan as plan
    from confide.privacy.sensitivity import Sensitivity as Sensitivity
    from confide.privacy.settings import Privacy as Privacy
    from confide.run import Run as Run
    from confide.schemes import scheme as scheme
    from confide.secure.settings import Secure as Secure

_HOME = {
    "GFL": "confide.algorithm",
    "Failures": "confide.algorithm",
    "Clip": "confide.clipping",
    "simulate": "confide.engines.driver",
    "InputError": "confide.errors",
    "RunError": "confide.errors",
    "Federation": "confide.federation",
    "Graph": "confide.graph",
    "Run": "confide.run",
    "scheme": "confide.schemes",
    "Secure": "confide.secure.settings",
    "Budget": "confide.privacy.calibrate",
    "Privacy": "confide.privacy.settings",
    "Sensitivity": "confide.privacy.sensitivity",
    "account": "confide.privacy.accountant",
    "plan": "confide.privacy.planner",
}
_MODULES = ("models", "problems", "schemes")
__all__ = [*sorted(_HOME), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"confide.{name}")
    else:
        raise AttributeError(f"module 'confide' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
