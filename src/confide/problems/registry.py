"""Which problems a config can name: confide's own, and those of installed packages.

A package announces its table under `[project.entry-points."confide.problems"]` of its pyproject.toml (see
`examples/own_problem.py`). It is loaded when a config of this machine's user names it, and never for a plan or a
bundle that somebody sent: those hold no name of a problem.
"""

from __future__ import annotations

from functools import reduce
from importlib.metadata import entry_points
from operator import or_
from typing import Annotated, Any, Final, get_args

from pydantic import Field

from confide.base.errors import InputError
from confide.problems.array_file import ArraysConfig
from confide.problems.click_log import ClicksConfig
from confide.problems.gaussian_config import RegressionConfig
from confide.problems.handwriting import DigitsConfig
from confide.problems.problem_config import ProblemConfig
from confide.problems.train_function_config import OwnConfig
from confide.problems.user_table import TableConfig

BUILT_IN: Final = (RegressionConfig, ClicksConfig, TableConfig, DigitsConfig, ArraysConfig, OwnConfig)
GROUP: Final = "confide.problems"


def names() -> list[str]:
    """confide's own first."""
    return [*_BY_NAME, *sorted({e.name for e in entry_points(group=GROUP)} - set(_BY_NAME))]


def any_of(kinds: tuple[type[ProblemConfig], ...]) -> Any:
    """Their union as a type: the one whose name a table has."""
    return Annotated[reduce(or_, kinds), Field(discriminator="name")]


def named(name: object) -> type[ProblemConfig]:
    """The table of this name.

    Raises:
        InputError: where there is none, or where the package that announces it does not bring it.
    """
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    found = tuple(entry_points(group=GROUP, name=name)) if isinstance(name, str) else ()
    if not found:
        raise InputError("problem.name", name, f"known: {', '.join(names())}")
    if len(found) > 1:
        raise InputError("problem.name", name, "several installed packages bring it; keep one of them")
    try:
        kind = found[0].load()
    except Exception as e:
        raise InputError("problem.name", name, f"loading {found[0].value} raised {type(e).__name__}: {e}") from e
    if not (isinstance(kind, type) and issubclass(kind, ProblemConfig) and _names(kind) == (name,)):
        remedy = f'{found[0].value} must be a confide.problems.ProblemConfig with name: Literal["{name}"]'
        raise InputError("problem.name", name, remedy)
    return kind


def _names(kind: type[ProblemConfig]) -> tuple[str, ...]:
    """The one word of its key `name`; none where that is no Literal."""
    return get_args(kind.model_fields["name"].annotation)


_BY_NAME: Final[dict[str, type[ProblemConfig]]] = {_names(kind)[0]: kind for kind in BUILT_IN}
