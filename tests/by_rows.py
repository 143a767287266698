"""The general accountant about any rows: failed links, other graphs in every round, servers that are picked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from confide.laws.law import GAUSSIAN
from confide.plans import words
from confide.privacy import accountant
from confide.privacy.course import Account, Bound, Leaked, Worst
from confide.privacy.general import Exposure
from confide.privacy.sensitivity import Sensitivity
from confide.rounds.schemes import Wiring


def expose(rounds: Sequence[Wiring], target: int, colluders: frozenset[int], gam: float = 1.0) -> Exposure:
    """The view of one target."""
    return accountant.expose_each(rounds, [target], colluders, gam)[0]


def account_by_rows(
    rounds: Sequence[Wiring],
    sensitivity: Sensitivity,
    *,
    colluders: Sequence[int] = (),
    targets: Sequence[int] | None = None,
) -> Account:
    """Of what each round does (`Scheme.wiring`), as `accountant.by_general`; by default about all honest servers."""
    threat: words.Threat = words.Colluders(frozenset(colluders)) if len(colluders) else words.Links()
    against = words.colluders(threat)
    chosen = [p for p in range(rounds[0].W.shape[0]) if p not in against] if targets is None else list(targets)
    found: list[Bound] = []
    for p, e in zip(chosen, accountant.expose_each(rounds, chosen, against), strict=True):
        blank = Account(
            str(threat), threat.adversary, sensitivity.level, sensitivity.adjacency, None, 1e-5, target=p,
            law=f"{GAUSSIAN.words} noise in the messages",
        )  # fmt: skip
        leaked = Leaked(replace(blank, leak=True))
        found.append(leaked if e.leak else accountant.looked_at(e, sensitivity, blank))
    return Worst(found, False, 0.0).at(len(rounds), 0)
