"""Problems to learn: each a federation, a model and what is known of the optimum.

Loaded when first used: reading tables needs polars, which the built-in regression does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confide.base.lazy import lazy

if TYPE_CHECKING:
    from confide.problems.array_file import arrays as arrays
    from confide.problems.click_log import clicks as clicks
    from confide.problems.gaussian import regression as regression
    from confide.problems.handwriting import digits as digits
    from confide.problems.problem import Problem as Problem
    from confide.problems.problem_config import ProblemConfig as ProblemConfig
    from confide.problems.train_function import own as own
    from confide.problems.user_table import table as table

_HOME = {
    "Problem": "confide.problems.problem",
    "ProblemConfig": "confide.problems.problem_config",
    "arrays": "confide.problems.array_file",
    "clicks": "confide.problems.click_log",
    "digits": "confide.problems.handwriting",
    "own": "confide.problems.train_function",
    "regression": "confide.problems.gaussian",
    "table": "confide.problems.user_table",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
