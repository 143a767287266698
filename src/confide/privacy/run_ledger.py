"""The ledger in the folder of a simulated run: what was spent there before stays, and the new run is added."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confide.base import canonical
from confide.base.errors import InputError
from confide.plans.plan import LARGEST, Plan
from confide.plans.privacy import Privacy
from confide.plans.text import encoded
from confide.privacy.ledger import (
    SEED,
    Book,
    Cost,
    Event,
    Promise,
    broken,
    dataset_id,
    random_id,
    read,
    write_events,
)
from confide.privacy.price import Price
from confide.problems.problem import Problem

PLAN, LEDGER = "plan.json", "ledger.jsonl"
PLANS = "plans"  # beside them, of the runs before in the same folder, by hash


def summary(price: Price, run: str) -> dict[str, Any]:
    """What a simulated run says about privacy, as plain data.

    Args:
        run: tells this run from others of the same plan.
    """
    p, costs, release = price.plan.privacy, price.messages, price.release
    return {
        "statement": price.statement().to_dict(),
        "settings": encoded(p) | {"dataset": p.dataset},
        "budget": None if p.budget is None else asdict(p.budget),
        "ledger": {
            "dataset": None if p.dataset is None else dataset_id(p.dataset),
            "run": run,
            "plan": price.plan.text,
            "costs": [asdict(cost) for cost in costs],
            "release": None if release is None else asdict(release),
        },
    }


def run_name(problem: Problem, seed: int) -> str:
    """Runs of data from a seed are told apart by it: two of them share their noise."""
    return secrets.token_hex(16) if problem.private else f"{SEED}{seed}"


def check_folder(folder: Path, privacy: Privacy | None) -> None:
    """Refuse before hours of work, not after: may a run with these settings add to the ledger of this folder?"""
    if (before := _ledger_in(folder)) is not None:
        name = None if privacy is None else privacy.dataset
        _check_addable(folder, before, privacy, None if name is None else dataset_id(name))


def write_ledger(ledger: Mapping[str, Any] | None, new: Path, old: Path, rounds: int) -> None:
    """plan.json and ledger.jsonl of a simulated run of `rounds`: an event for every message of every unit.

    `new` is to take the place of `old`: what the ledger of `old` holds comes first, and the plans of its runs are kept.
    A run that is in it already, because it was saved before, is not added again; nor is one that did nothing.
    """
    before = _ledger_in(old)
    plan = None if ledger is None else Plan.from_text(ledger["plan"])
    if before is not None:
        if rounds or ledger is not None:
            privacy, dataset = (None, None) if ledger is None or plan is None else (plan.privacy, ledger["dataset"])
            _check_addable(old, before, privacy, dataset)
        _keep(before, old, new)
    if ledger is None or plan is None:
        if (old / PLAN).is_file():
            (new / PLAN).write_bytes((old / PLAN).read_bytes())
        return
    plan.save(new / PLAN)
    if before is not None and any((r.header.run, r.plan) == (ledger["run"], plan.hash) for r in before.runs):
        return

    def events() -> Iterator[Event]:
        for i, cost in enumerate(ledger["costs"], 1):
            one = Cost(**cost)
            yield from (Event(plan.hash, "message", i, unit, one) for unit in range(plan.P))
        if ledger["release"] is not None:
            one = Cost(**ledger["release"])
            yield from (Event(plan.hash, "release", plan.rounds, unit, one) for unit in range(plan.P))

    dataset = before.dataset if before is not None else ledger["dataset"] or random_id()
    (new / LEDGER).unlink(missing_ok=True)  # the copy that `_keep` made: all of it comes first again
    write_events(new / LEDGER, dataset, plan, events(), ledger["run"], before)


def check_whole(folder: Path, book: Book) -> None:
    """The ledger of a folder holds the run that was saved there last: no run at its end is gone."""
    if canonical.digest(canonical.read_text(folder / PLAN, "plan", LARGEST)) not in {run.plan for run in book.runs}:
        remedy = f"does not hold the run of {PLAN} beside it: its end is gone; take the folder from a backup"
        raise InputError("ledger", str(folder / LEDGER), remedy)


def plans_in(folder: Path, book: Book) -> list[Plan]:
    """The plans of all runs in the ledger of a folder; that of the run saved there last comes first."""
    check_whole(folder, book)
    latest = Plan.load(folder / PLAN)
    others = dict.fromkeys(run.plan for run in book.runs if run.plan not in (None, latest.hash))
    return [latest, *(Plan.load(folder / PLANS / f"{hash}.json") for hash in others)]


def _ledger_in(folder: Path) -> Book | None:
    if not (folder / LEDGER).exists():
        return None
    try:
        return read(folder / LEDGER)
    except InputError as e:
        remedy = f"its {LEDGER} is not whole ({e.remedy}), and is not replaced; name another folder"
        raise InputError("output.folder", str(folder), remedy) from None


def _check_addable(folder: Path, before: Book, privacy: Privacy | None, dataset: str | None) -> None:
    if privacy is None:
        reason: str | None = "a run without an account (algorithm.clip) has no bound and cannot be added to it"
    else:
        reason = broken(before.promise, "it", Promise.of(privacy), "this run")
    if reason is None and dataset not in (None, before.dataset):
        reason = "this run names other data (privacy.dataset)"
    if reason is not None:
        remedy = f"holds the ledger of earlier runs, which is not forgotten: {reason}; name another folder"
        raise InputError("output.folder", str(folder), remedy)


def _keep(before: Book, old: Path, new: Path) -> None:
    """The ledger and the plans of its runs, as they are."""
    (new / LEDGER).write_bytes((old / LEDGER).read_bytes())
    hashes = {run.plan for run in before.runs}
    for path in (old / PLAN, *(old / PLANS / f"{hash}.json" for hash in hashes)):
        if path.is_file():
            text = canonical.read_text(path, "plan", LARGEST)
            (new / PLANS).mkdir(exist_ok=True)
            (new / PLANS / f"{canonical.digest(text)}.json").write_text(text + "\n", encoding="utf-8")
