"""`confide reproduce`: the paper's figures and a verdict on each of its claims."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confide.base.errors import InputError
from confide.base.files import atomic_file, check_writable, no_empty_folders
from confide.base.validation import one_of, positive_int, whole
from confide.experiments.claims import Claim
from confide.experiments.page import write_page
from confide.problems.reading import scan_table

DEFAULT = ("regression", "classification", "privacy")
NAMES = (*DEFAULT, "equal-privacy", "robustness", "all")
Figure = Callable[[], tuple[list[str], list[Claim]]]


@dataclass
class Report:
    """Verdicts and files.

    Attributes:
        claims: about learning.
        privacy_claims: what the paper says of privacy; these never change the exit status.
    """

    claims: list[Claim] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    privacy_claims: list[Claim] = field(default_factory=list)

    @property
    def as_expected(self) -> bool:
        """Whether every claim about learning came out as is known of it; what is not decided says nothing."""
        return all(claim.as_expected for claim in self.claims)

    def to_dict(self) -> dict[str, Any]:
        said = {name: [c.to_dict() for c in getattr(self, name)] for name in ("claims", "privacy_claims")}
        return vars(self) | said | {"seconds": round(self.seconds, 2)}


def reproduce(
    names: tuple[str, ...] = DEFAULT,
    *,
    quick: bool = False,
    repeats: int | None = None,
    seed: int = 0,
    out: str | Path = "results",
    data: str | Path | None = None,
    announce: Callable[[str, float], None] = lambda what, done: None,
) -> Report:
    """Make the figures into `out`, one by one: those already made survive an interruption, with their claims.

    Args:
        quick: 4 repetitions of 300 rounds instead of 20 of 1,000; at equal privacy 10 at two budgets instead of 60 at
            five. Runs with small steps are as long as their time constants ask for.
        repeats: repetitions of every experiment, instead of those.
        data: Avazu's CSV (or .gz) for the classification; a synthetic log stands in without it.
        announce: told the name of each figure before it is made, and what part of the work is done by then.
    """
    for name in names:
        one_of("experiment", name, NAMES)
    asked = positive_int("repeats", repeats) if repeats is not None else None
    repeats, rounds = asked or (4 if quick else 20), 300 if quick else 1000
    whole("seed", seed, 0, 2**63 - 1)
    if data is not None:
        if not {"classification", "all"} & set(names):
            raise InputError("data", str(data), "only the classification reads a file; name it too, or leave this out")
        scan_table(data, "data")
    folder = Path(out)
    began, report = time.perf_counter(), Report()
    with no_empty_folders(folder):
        check_writable(folder)
        table = Path(data) if data is not None else None
        try:
            figures = list(_figures(names, rounds, repeats, seed, folder, table, quick, asked))
            done, total = 0.0, sum(cost for _, cost, _ in figures)
            for what, cost, figure in figures:
                announce(what, done / total)
                files, claims = figure()
                report.files += files
                report.claims += [claim for claim in claims if not claim.privacy]
                report.privacy_claims += [claim for claim in claims if claim.privacy]
                done += cost
        except KeyboardInterrupt:
            report.interrupted = True
        report.seconds = time.perf_counter() - began
        path = folder / "claims.json"
        report.files += [write_page(report.to_dict(), folder), str(path)]
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return report


def _figures(
    names: tuple[str, ...],
    rounds: int,
    repeats: int,
    seed: int,
    folder: Path,
    data: Path | None,
    quick: bool = False,
    asked: int | None = None,
) -> Iterator[tuple[str, float, Figure]]:
    """Each figure with its claims: its name, and its part of the work (seconds of one machine at full size)."""
    if {"regression", "all"} & set(names):
        from confide.experiments import regression_claims as said
        from confide.experiments import regression_figures as drawn
        from confide.experiments import small_steps as h
        from confide.experiments.regression import Regression

        x = Regression(rounds, repeats, seed)
        yield "(a) three algorithms", 4, lambda: (drawn.figure_a(x, folder), said.claims_a(x))
        yield "(b) noise variance", 6, lambda: (drawn.figure_b(x, folder), said.claims_b(x))
        yield "(c) step-size", 3, lambda: (drawn.figure_c(x, folder), said.claims_c(x))
        yield "(e) a final sum over servers", 1, lambda: (drawn.figure_e(x, folder), said.claims_e(x))
        yield "(h) small steps", 6, lambda: ([], h.claims_h(x))
    if {"classification", "all"} & set(names):
        from confide.experiments import classification as c
        from confide.experiments import classification_claims as told

        y = c.Classification(rounds, repeats, seed, data)
        yield "(d) clicks", 15, lambda: (c.figure_d(y, folder), told.claims_d(y))
    if {"privacy", "all"} & set(names):
        from confide.experiments import privacy_claims as p

        v = p.Privacy(min(repeats, 10), seed)
        yield "(i) equal privacy, in short", 6, lambda: (p.figure_i(v, folder), p.claims_i(v))
    if {"equal-privacy", "all"} & set(names):
        from confide.experiments import equal_privacy as q

        z = q.EqualPrivacy.sized(quick, asked, seed)
        yield "(f) released models at equal privacy", 60, lambda: q.figure_f(z, folder)
        yield "(g) individual models at equal privacy", 1, lambda: q.figure_g(z, folder)
        from confide.experiments import architectures as k

        t = k.Architectures(min(z.repeats, 20), seed)
        yield "(k) one server, a tree, a graph, clients alone", 4, lambda: (k.figure_k(t, folder), k.claims_k(t))
    if {"robustness", "all"} & set(names):
        from confide.experiments import robustness as j

        u = j.Robustness(min(repeats, 8), seed)
        yield "(j) robustness", 20, lambda: (j.figure_j(u, folder), j.claims_j(u))
