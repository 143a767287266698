"""The privacy statement: one object, printed everywhere, that names who is protected from whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from itertools import zip_longest
from textwrap import wrap
from typing import Any, Final

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import Law
from confide.plans import words
from confide.plans.words import Centroid, Colluders, Links, Release, Threat
from confide.privacy.accountant import account
from confide.privacy.closed_forms import covers
from confide.privacy.course import Account
from confide.privacy.paid import onlookers
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise
from confide.rounds.schemes import Scheme

WIDTH: Final = 80  # columns of a table
PROSE: Final = 100  # and of a sentence
PROTECTS: Final = 20  # columns, at most, of what protects
WORDS: Final = ((1.0, "strong"), (4.0, "moderate"), (10.0, "weak"))  # epsilon up to; beyond: practically none
ANY_ONE: Final = "any one colluding server"
ADJACENCY: Final = "adjacency: "  # begins the assumption that says which two data sets are told apart
RELEASE: Final = re.compile(r"(, and (?:the release|\d+ releases)) \((.*)\)$")  # of an adversary's words


@dataclass(frozen=True)
class Statement:
    """One account for each adversary of `statement_of`; who has none is in `refused`, with the reason."""

    rounds: int
    noise: str
    accounts: tuple[Account, ...]
    refused: tuple[tuple[str, str], ...] = ()  # (threat, reason)
    unprotected: tuple[str, ...] = ()  # what the makers of the plan know to have no price; said first
    level: str = ""  # of all accounts, also where there is none
    adjacency: str = ""
    delta: float | None = None

    @property
    def exposed(self) -> bool:
        """Whether it says NOT PROTECTED of anybody."""
        return bool(self.unprotected) or any(account.leak for account in self.accounts)

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "accounts": [a.to_dict() for a in self.accounts],
            "refused": [{"threat": t, "reason": r} for t, r in self.refused],
            "unprotected": list(self.unprotected),
        }

    def __str__(self) -> str:
        return "\n".join(lines(self.to_dict()))


def statement(
    scheme: Scheme,
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    *,
    rounds: int,
    noise: Law | str | None = None,
    threat: Threat | str = "links",
    release: Reveal | str = "none",
    delta: float = 1e-5,
    sum_noise: SumNoise | None = None,
    secure: bool = True,
    dropout: bool = False,
) -> Statement:
    """A statement without a plan, from the arguments of `account`; of a plan `Price.statement` makes it.

    Args:
        threat: the adversary that the shares of a release are sized for.
    """
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    law = Law.parse(noise or scheme.law)
    if isinstance(release, str):
        release = Reveal.sized(words.release(release), words.threat(threat), graphs)
    reveal = release

    def ask(who: Threat, released: bool) -> Account:
        return account(
            scheme, graphs, sensitivity, rounds=rounds, noise=law, threat=who, release=reveal if released else Reveal(),
            delta=delta, sum_noise=sum_noise, secure=secure, dropout=dropout,
        )  # fmt: skip

    found, refused = statement_of(graphs[0].P, bool(scheme.sigma_pair) or not covers(scheme), reveal.release, ask)
    promise = (str(sensitivity.level), str(sensitivity.adjacency), delta)
    return Statement(rounds, str(law), found, refused, (), *promise)


def statement_of(
    P: int, pairs: bool, release: Release, ask: Callable[[Threat, bool], Account]
) -> tuple[tuple[Account, ...], tuple[tuple[str, str], ...]]:
    """One account for each of `onlookers`, where the worst of single colluders stands for all of them; and (threat,
    reason) of those that have none.

    Args:
        pairs: see `onlookers`.  ask: (adversary, whether it sees the release) -> its account.
    """
    found: list[Account] = []
    refused: list[tuple[str, str]] = []
    for _, who, released in onlookers(P, pairs, release):
        one_of_all = isinstance(who, Colluders)
        try:
            one = ask(who, released)
        except InputError as e:
            again = isinstance(who, Links) and released  # links are asked about twice
            refused.append((str(who), f"with the release ({release}): {e}" if again else str(e)))
            continue
        if one_of_all:
            one = replace(one, adversary=one.adversary.replace(who.adversary, ANY_ONE))
        if one_of_all and found and found[-1].adversary == one.adversary:
            if _worse(one, found[-1]):
                found[-1] = one
        else:
            found.append(one)
    return tuple(found), tuple(refused)


def lines(plain: dict[str, Any]) -> list[str]:
    """A statement in words, from its plain data (a run read back from disk has only that)."""
    return [*table(plain), *assumptions(plain)]


def table(plain: dict[str, Any]) -> list[str]:
    """A row for each adversary, those without protection first; who has the same reason shares its text.

    What is released is said once, above.
    """
    found = [line for why in plain.get("unprotected", ()) for line in _prose(f"NOT PROTECTED: {why}")]
    accounts = plain["accounts"]
    numbered = _numbered(plain)
    if accounts or plain.get("level"):
        found += [line for text in _heading([*numbered, *accounts], plain) for line in _prose(text)]
    if not accounts and not plain["refused"]:
        return found
    places = _places(plain)
    cells = [_cells(a, [places[x] for x in _notes(a)], len(_common(plain))) for a in numbered]
    heads = ("epsilon", "protection", "detected", "what protects")
    widths = [max(len(x) for x in column) for column in zip(heads, *(row[1:] for row in cells), strict=True)]
    widths[-1] = min(widths[-1], PROTECTS)
    first = WIDTH - sum(widths) - 2 * len(widths)

    def row(who: str, *cells: str) -> list[str]:
        columns = [_wrapped(who, first), *map(_wrapped, cells, widths)]
        lines = zip_longest(*columns, fillvalue="")
        return ["  ".join(map(str.ljust, line, (first, *widths))).rstrip() for line in lines]

    found += ["", *row("against", *heads), "  ".join("-" * width for width in (first, *widths))]
    for reason, everybody in _leaks(plain).items():
        found += _beside(everybody, reason, first)
    for who, epsilon, word, detected, protects in cells:
        found += row(who, epsilon.rjust(widths[0]), word, detected.rjust(widths[2]), protects)
    for reason, everybody in _refusals(plain).items():
        found += _beside(everybody, reason, first)
    return found


def assumptions(plain: dict[str, Any]) -> list[str]:
    """Each once, under the number by which the rows of the table name it; nothing where there is no number."""
    common, places = len(_common(plain)), _places(plain)
    found = ["", "Every number rests on"] if common else []
    for note, n in places.items():
        if n == common + 1:
            found += ["", "and, where its row says so, on" if common else "A number rests, where its row says so, on"]
        found += _prose(note, f"{f'[{n}]':>5} ")
    return found


def rounded_up(x: float, digits: int = 4) -> str:
    """A bound is not shown smaller than it is, but for what a search or a sum leaves in the last places."""
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(x * (1.0 - 1e-9))):.{digits}g}"


def strength(epsilon: float) -> str:
    """A word for an epsilon, as it is shown."""
    return next((word for most, word in WORDS if float(rounded_up(epsilon)) <= most), "practically none")


def _heading(accounts: list[dict[str, Any]], plain: dict[str, Any]) -> list[str]:
    """Whose data, told from which other; at which delta, of what, and what 'detected' means."""
    a = accounts[0] if accounts else plain | {"assumptions": (), "leak": True}
    change = next((x for x in a["assumptions"] if x.startswith(ADJACENCY)), "")
    change = f": {change.removeprefix(ADJACENCY)}" if change else ""
    of = [] if plain.get("rounds") is None else [f"{plain['rounds']} rounds"]
    released = [match[2] for one in accounts if (match := RELEASE.search(one["adversary"]))]
    of += [f"release {release}" for release in dict.fromkeys(released)]
    found = [
        f"Level {a['level']}, adjacency {a['adjacency']}{change}.",
        ", ".join([f"delta {a['delta']:g}", *of]) + ".",
    ]
    return found if a["leak"] else [*found, "Detected: at most so often, by an attacker who accepts 1% false alarms."]


def _cells(a: dict[str, Any], notes: list[int], common: int) -> tuple[str, str, str, str, str]:
    own = [n for n in notes if n > common]
    protects = {"sum": "noise inside the secure sum", "clients": "noise on client links"}.get(
        a["by"], "noise in messages"
    )
    released = RELEASE.search(a["adversary"])
    if a["by"] == "messages" and released and isinstance(words.release(released[2]), Centroid):
        protects = "noise in messages and release"
    if a["epsilon"] == 0.0 and not a["rho"]:  # so much noise that delta covers it is seen
        protects = "nothing of it is seen"
    marks = f" [{','.join(map(str, own))}]" if own else ""
    detected = f"{rounded_up(100.0 * a['success_at_1_percent'], 3)}%"
    return _who(a), rounded_up(a["epsilon"]), strength(a["epsilon"]), detected, protects + marks


def _who(a: dict[str, Any]) -> str:
    return RELEASE.sub(r"\1", a["adversary"])


def _numbered(plain: dict[str, Any]) -> list[dict[str, Any]]:
    return [a for a in plain["accounts"] if not a["leak"]]


def _leaks(plain: dict[str, Any]) -> dict[str, list[str]]:
    """Adversaries by the reason that they share."""
    found: dict[str, list[str]] = {}
    for a in plain["accounts"]:
        if a["leak"]:
            why = next((x for x in a["assumptions"] if x.startswith("leak: ")), "the view gives the data away")
            found.setdefault(f"NOT PROTECTED: {why.removeprefix('leak: ')}", []).append(_who(a))
    return found


def _refusals(plain: dict[str, Any]) -> dict[str, list[str]]:
    """Likewise."""
    found: dict[str, list[str]] = {}
    for r in plain["refused"]:
        who = words.threat(r["threat"])
        named = ANY_ONE if len(words.colluders(who)) == 1 else who.adversary
        everybody = found.setdefault(f"NO NUMBER: {r['reason']}", [])
        everybody += [] if named in everybody else [named]
    return found


def _beside(everybody: list[str], reason: str, first: int) -> list[str]:
    """Adversaries under one another, what is said of all of them beside."""
    left = [line for who in everybody for line in _wrapped(who, first)]
    right = _wrapped(reason, WIDTH - first - 2)
    return [f"{a.ljust(first)}  {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]


def _notes(a: dict[str, Any]) -> list[str]:
    """What a number rests on; the adjacency stands above the table."""
    found = [x for x in a["assumptions"] if not x.startswith(ADJACENCY)]
    return found + [f"{name}: {a[name]}" for name in ("law", "conversion") if a.get(name)]


def _common(plain: dict[str, Any]) -> list[str]:
    each = [_notes(a) for a in _numbered(plain)]
    return [x for x in dict.fromkeys(each[0]) if all(x in notes for notes in each)] if each else []


def _places(plain: dict[str, Any]) -> dict[str, int]:
    """Every assumption and its number: what all rows share comes first."""
    rest = [x for a in _numbered(plain) for x in _notes(a)]
    return {x: n for n, x in enumerate(dict.fromkeys([*_common(plain), *rest]), 1)}


def _prose(text: str, before: str = "") -> list[str]:
    return wrap(text, PROSE, initial_indent=before, subsequent_indent=" " * len(before), break_on_hyphens=False)


def _wrapped(text: str, width: int) -> list[str]:
    if not text[:1].isspace():
        return wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return [text]  # a number, in its place


def _worse(a: Account, b: Account) -> bool:
    if a.leak != b.leak:
        return a.leak
    return (a.epsilon or 0.0) > (b.epsilon or 0.0)
