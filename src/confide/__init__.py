"""confide: private learning across a graph of federations.

    import confide
    run = confide.simulate(confide.problems.regression(), confide.Graph.ring(10), rounds=500, repeats=4)

Names are loaded when they are first used, so that `import confide` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confide.base.lazy import lazy

if TYPE_CHECKING:
    from confide import deploy as deploy
    from confide import problems as problems
    from confide import testing as testing
    from confide.base.errors import InputError as InputError
    from confide.base.errors import RunError as RunError
    from confide.engines.driver import simulate as simulate
    from confide.engines.run import Run as Run
    from confide.graph.graph import Graph as Graph
    from confide.plans.privacy import Budget as Budget
    from confide.plans.privacy import Privacy as Privacy
    from confide.privacy.accountant import account as account
    from confide.privacy.planner import plan as plan
    from confide.privacy.sensitivity import Sensitivity as Sensitivity
    from confide.problems import models as models
    from confide.problems.federation import Federation as Federation
    from confide.rounds import schemes as schemes
    from confide.rounds.algorithm import GFL as GFL
    from confide.rounds.algorithm import Failures as Failures
    from confide.rounds.clipping import Clip as Clip
    from confide.rounds.schemes import scheme as scheme
    from confide.secure.settings import Secure as Secure

_HOME = {
    "GFL": "confide.rounds.algorithm",
    "Failures": "confide.rounds.algorithm",
    "Clip": "confide.rounds.clipping",
    "simulate": "confide.engines.driver",
    "InputError": "confide.base.errors",
    "RunError": "confide.base.errors",
    "Federation": "confide.problems.federation",
    "Graph": "confide.graph",
    "Run": "confide.engines.run",
    "scheme": "confide.rounds.schemes",
    "Secure": "confide.secure.settings",
    "Budget": "confide.plans.privacy",
    "Privacy": "confide.plans.privacy",
    "Sensitivity": "confide.privacy.sensitivity",
    "account": "confide.privacy.accountant",
    "plan": "confide.privacy.planner",
}
_MODULES = {
    "deploy": "confide.deploy",
    "models": "confide.problems.models",
    "problems": "confide.problems",
    "schemes": "confide.rounds.schemes",
    "testing": "confide.testing",
}
__all__ = [*sorted(_HOME), *_MODULES]
__getattr__, __dir__ = lazy(__name__, _HOME, _MODULES)
