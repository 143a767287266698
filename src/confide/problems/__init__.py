"""Problems to learn: each a federation, a model and what is known of the optimum."""

from confide.problems.clicks import clicks
from confide.problems.problem import Problem
from confide.problems.regression import regression
from confide.problems.table import table

__all__ = ["Problem", "clicks", "regression", "table"]
