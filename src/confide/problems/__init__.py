"""Problems to learn: each a federation, a model and what is known of the optimum."""

from confide.problems.click_log import clicks
from confide.problems.gaussian import regression
from confide.problems.problem import Problem
from confide.problems.user_table import table

__all__ = ["Problem", "clicks", "regression", "table"]
