"""What all engines are given, and what the driver asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confide.base.arrays import Floats
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL

if TYPE_CHECKING:
    from confide.secure.secret import RunSecret


@dataclass(eq=False)
class Engine(ABC):
    """Rounds of any repetition, from any thread.

    Attributes:
        cap: rounds in which a client gives data at most.
        secret: of the run: its noise, and where it says so all its draws; those of `seed` without one.
    """

    problem: Problem
    graphs: Sequence[Graph]
    algorithm: GFL
    rounds: int
    seed: int
    cap: int | None = None
    secret: RunSecret | None = None

    def __post_init__(self) -> None:
        self.P, self.M = self.graphs[0].P, self.problem.M

    @abstractmethod
    def start(self) -> Any:
        """What a repetition carries from round to round, before round 1: first the states of all servers."""

    def states(self, repeats: int) -> list[Any]:
        """What `start` says of all repetitions: a state for each, or one for all of them where they move together."""
        return [self.start() for _ in range(repeats)]

    @abstractmethod
    def advance(self, repetition: int, w: Any, first: int, last: int, out: Recording) -> tuple[int, int] | None:
        """Run rounds first..last on a state in place; the (round, repetition) in which one blew up first.

        Args:
            repetition: whose state it is; 0 where it is that of all.
        """

    @abstractmethod
    def models(self, w: Any) -> Floats:
        """A state as numbers, (P, M), or those of all repetitions, (repeats, P, M)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the output of a run must say of its rounds."""
        return ()

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """No round will be run any more; one that is under way ends, with an error."""
