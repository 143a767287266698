"""The reference round behind the engines' interface: for fixed point, and for models and steps of the user's own."""

from __future__ import annotations

import math

import numpy as np

from confide.base.arrays import Floats
from confide.engines.engine import Engine
from confide.engines.recording import Recording
from confide.rounds.arithmetic import State
from confide.rounds.reference import prepare

LARGE = 1e60


class PlainEngine(Engine):
    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.problem, self.graphs, self.algorithm, self.rounds, self.seed
        self.repetition = prepare(*given, cap=self.cap, secret=self.secret)
        self.arithmetic, self.kept = self.repetition(0).arithmetic, self.repetition(0).kept(self.M)
        self.optimum = self.problem.optimum

    def start(self) -> State:
        """The models, and below them what a scheme with memory keeps of the rounds before."""
        models, kept = np.tile(self.problem.start, (self.P, 1)), np.zeros((math.prod(self.kept[:2]), self.M))
        return self.arithmetic.state(np.concatenate([models, kept]))

    def advance(self, repetition: int, w: State, first: int, last: int, out: Recording) -> tuple[int, int] | None:
        reference = self.repetition(repetition)
        for i in range(first, last + 1):
            done = reference.round(i, w[: self.P], w[self.P :].reshape(self.kept))
            w[: self.P], w[self.P :] = done.w, done.drawn.reshape(-1, self.M)
            values = self.models(w)
            centroid = values.mean(axis=0)
            at = (repetition, i - 1)
            if self.optimum is not None:
                out.centroid_msd[at] = np.sum((centroid - self.optimum) ** 2)
                out.individual_msd[at] = np.mean(np.sum((values - self.optimum) ** 2, axis=1))
            out.disagreement[at] = np.mean(np.sum((values - centroid) ** 2, axis=1))
            out.residual[at] = np.linalg.norm(self.arithmetic.value(done.w.sum(axis=0) - done.own.sum(axis=0)))
            out.uncancelled[at] = np.linalg.norm(self.arithmetic.value(done.w.sum(axis=0) - done.psi.sum(axis=0)))
            out.participants[at] = done.participants
            if i % out.every == 0 or i == self.rounds:
                out.centroids[repetition, out.slot(i)] = centroid
            if not np.sum(values**2) < LARGE:
                return i, repetition
        return None

    def models(self, w: State) -> Floats:
        return self.arithmetic.value(w[: self.P])
