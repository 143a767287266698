"""Train functions of one's own in a simulation: the process of a deployed client, one for each core, with any client's
work in any of them.

What a training does to its process, and what becomes of one that fails, is as in a deployment: it counts as zeros, and
that is said. Only who waits differs: here a round waits for all of its trainings.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np

from confide.base.arrays import Floats
from confide.base.closing import Closing
from confide.base.entry_points import home
from confide.base.errors import InputError, RunError
from confide.deploy.machines import own_training
from confide.deploy.node.training_process import ONE_THREAD, TrainingProcess
from confide.engines.plain import PlainEngine
from confide.problems.train_function import Own
from confide.rounds.local import LocalTask

SHOWN: Final = 3  # kinds of failure in a note


class TrainingWarning(UserWarning):
    """A training failed, and counts as zeros."""


class OwnEngine(PlainEngine):
    """The reference round, with trainings side by side in other processes."""

    def __post_init__(self) -> None:
        model, a = self.problem.model, self.algorithm
        if not isinstance(model, Own):
            raise InputError("problem", type(model).__name__, "has no train function")
        if a.clip is None:
            remedy = "what a train function returns is clipped as a whole: algorithm.clip = 'update', with a bound"
            raise InputError("algorithm.clip", "none", remedy)
        own_training.check_clip(model.train, a.clip)
        self._pool = Pool(model, min(_cores(), self.graphs[0].P * a.sampled))
        self.algorithm = replace(a, local=self._pool)
        try:
            super().__post_init__()
        except BaseException:
            self._pool.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        return self._pool.notes

    def close(self) -> None:
        self._pool.close()


class Pool(Closing):
    """A local step: the owner's function in one of so many processes, which have loaded it.

    Raises:
        InputError: it cannot be loaded, and why.
    """

    def __init__(self, model: Own, processes: int) -> None:
        self._model, self._free = model, SimpleQueue[TrainingProcess]()
        self._begun: dict[tuple[int, int, int], Future[Floats]] = {}
        self._failed, self._seconds, self._done = Counter[str](), 0.0, 0
        environment = dict.fromkeys(ONE_THREAD, "1") | dict(os.environ)  # each has a core
        self._all: list[TrainingProcess] = []
        self._threads = ThreadPoolExecutor(processes, "training")
        try:
            found = home(model.train)
            folder = Path.cwd() if found is None else found.parent
            for _ in range(processes):  # they load side by side
                self._all.append(TrainingProcess(model.train, folder, model.log, environment))
            for process in self._all:
                process.load()
                process.timeout = model.timeout
                self._free.put(process)
        except BaseException:
            self.close()
            raise

    def begin(self, round: int, models: Mapping[int, Floats], clients: Mapping[int, Sequence[int]]) -> None:
        for p, some in clients.items():
            for k in some:
                self._begun[round, p, k] = self._threads.submit(self._train, models[p], round, p, k)

    def __call__(self, w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
        try:
            return self._begun.pop(task.at).result()
        except RunError as e:
            self._tell(str(e))
            return np.zeros(len(w))

    def _train(self, weights: Floats, round: int, unit: int, client: int) -> Floats:
        process, name = self._free.get(), self._model.train
        with suppress(InputError):  # after one that was ended; if it fails now, the training says so
            process.load()
        began = time.perf_counter()
        try:
            update = process(weights, round, self._model.told(unit, client))
        finally:
            self._free.put(process)
            self._seconds, self._done = self._seconds + time.perf_counter() - began, self._done + 1
        if own_training.largest_of(name, update) > own_training.FAR:
            self._tell(f"{name}: numbers of an update end as zero: {own_training.LOST}")
        return update

    def _tell(self, why: str) -> None:
        if why not in self._failed:
            warnings.warn(TrainingWarning(why), stacklevel=2)
        self._failed[why] += 1

    @property
    def notes(self) -> tuple[str, ...]:
        name, each = self._model.train, self._seconds / max(1, self._done)
        speed = f"{name}: {self._done} trainings in {len(self._all)} processes, {each:.2g} s each on average"
        told = [f"training failed {n} times, and counted as zeros: {why}" for why, n in self._failed.most_common(SHOWN)]
        rest = sum(self._failed.values()) - sum(n for _, n in self._failed.most_common(SHOWN))
        return (speed, *told, *([f"training failed {rest} times more, for other reasons"] if rest else []))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.close()
        self._threads.shutdown()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
