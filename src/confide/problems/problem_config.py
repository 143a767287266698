"""The table [problem] of a config: what every kind of problem says of itself before there are any data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from confide.base.tables import Table

if TYPE_CHECKING:
    from confide.problems.models import Model
    from confide.problems.problem import Problem


class ProblemConfig(Table, ABC):
    """The keys of one kind of problem; `name: Literal[...]` is the word that a config chooses it by.

    A config is read often and its problem is made rarely, so `make` imports what is heavy. Four keys mean the same
    in every problem that has them: `units` (P), `clients` (K), `rho` (the regulariser) and `seed` (of the data).

    Attributes:
        one_release: every repeat releases somebody's data once more, so that `repeats` is 1 by default.
        labels: keys that hold values of the data, which may be as large as they like.
        sized_by: keys that decide `memory`, the first of which a refusal names.
        entry_points: keys that name code, which is loaded; a config that another run left may not have them.
    """

    one_release: ClassVar[bool] = False
    labels: ClassVar[frozenset[str]] = frozenset()
    sized_by: ClassVar[tuple[str, ...]] = ()
    entry_points: ClassVar[frozenset[str]] = frozenset()
    name: str

    @abstractmethod
    def make(self, seed: int) -> Problem:
        """The data and the model.

        Args:
            seed: of the config, for a table that has no seed of its own.
        """

    def memory(self) -> int:
        """Bytes that `make` would need; 0 where only the data could tell."""
        return 0

    def without_data(self) -> tuple[Model, int] | None:
        """The model and its number of features, where they are known without making the problem."""
        return None

    def fixed(self, key: str) -> str | None:
        """Why `units` or `clients` cannot be set to a number; None where it can."""
        return None if key in type(self).model_fields else f"the problem {self.name!r} has no key problem.{key}"

    def given(self, key: str) -> Any:
        """The value of `units`, `clients` or `rho`; None where the table has none."""
        return getattr(self, key, None)

    def arguments(self, seed: int) -> dict[str, Any]:
        """The keys that are set, the name left out, with this seed where there is none."""
        return {"seed": seed} | self.model_dump(exclude={"name"}, exclude_none=True)
