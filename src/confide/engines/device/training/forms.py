"""The same training laid out in other ways: what runs fast on a CPU runs slowly on a GPU."""

from __future__ import annotations

from confide.engines.device.backend import Array, Backend
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.clipping import Clip


def by_unit(b: Backend, train: Train) -> Train:
    """One unit at a time, its clients side by side."""

    def trained(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        def one(done: Array, unit: tuple[Array, Cohort]) -> tuple[Array, Array]:
            own, clients = unit
            return done, train(own[None], X, d, clients.each(lambda a: a[None]), clip)[0]

        return b.scan(one, b.zeros(()), (w, cohort))[1]

    return trained


def by_client(b: Backend, train: Train) -> Train:
    """One client of every unit at a time."""

    def trained(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        def one(total: Array, clients: Cohort) -> tuple[Array, Array]:
            return total + train(w, X, d, clients.each(lambda a: a[:, None]), clip), b.zeros(())

        turned = cohort.each(lambda a: b.xp.swapaxes(a, 0, 1))
        return b.scan(one, b.xp.zeros_like(w), turned)[0]

    return trained


def fast(b: Backend, train: Train) -> Train:
    """With products in what the device multiplies fastest; at full precision where a clip must hold."""

    def trained(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        with b.training("fast" if clip is None else "full"):
            return train(w, X, d, cohort, clip)

    return trained
