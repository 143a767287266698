"""`results/index.html`: the figures of a report with their captions, and every claim with its verdict and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confide.base.files import atomic_file
from confide.figures.page import Said, Section, render

TITLE = "Privatized Graph Federated Learning, reproduced"
NAMES = (
    "Schemes have the names that configs give them: none is the algorithm without noise, homomorphic the paper's "
    "graph-homomorphic perturbations, per-link its random perturbations. A curve runs again by itself, for example by "
    "confide simulate figures/2.toml. The numbers of the curves are in CSV files beside the pictures, those of the "
    "claims in claims.json."
)
NOISE = "The paper's figures compare schemes at equal noise. That is not equal privacy, which they do not account for."
WORDS = {True: "holds", False: "does not hold", None: "not decided"}


def write_page(report: Mapping[str, Any], folder: Path) -> str:
    """From `Report.to_dict()`; returns where the page is."""
    path = folder / "index.html"
    with atomic_file(path) as temporary:
        temporary.write_text(render(TITLE, _lead(report), _sections(report)), encoding="utf-8")
    return str(path)


def _lead(report: Mapping[str, Any]) -> list[str]:
    verdicts = [claim["holds"] for claim in report["claims"]]
    counts = ", ".join(f"{word} {verdicts.count(holds)}" for holds, word in WORDS.items())
    lead = [f"Verdicts on the claims about learning: {counts}.", NAMES, NOISE]
    if report["interrupted"]:
        lead.insert(0, "This run was interrupted: the figures and claims are those made until then.")
    return lead


def _sections(report: Mapping[str, Any]) -> list[Section]:
    """One a figure, in the order in which they were made; then what is said of none of them, and of privacy."""
    pictures: dict[str, list[Path]] = {}
    for path in map(Path, report["files"]):
        if path.suffix == ".svg":
            pictures.setdefault(_figure(path.stem), []).append(path)
    said: dict[str, list[Said]] = {}
    for claim in report["claims"]:
        about = str(claim.get("figure"))
        said.setdefault(about if about in pictures else "", []).append(_said(claim))
    sections = [
        Section(_title(figure), tuple(shown), tuple(said.get(figure, ()))) for figure, shown in pictures.items()
    ]
    if "" in said:
        sections.append(Section("Further claims", said=tuple(said[""])))
    if report.get("privacy_claims"):
        privacy = tuple(map(_said, report["privacy_claims"]))
        sections.append(Section("What the paper says of privacy", said=privacy))
    return sections


def _figure(stem: str) -> str:
    """The paper's number of a picture, or else its name."""
    numbered = re.match(r"figure_(\w+?)_", stem)
    return numbered[1] if numbered else stem


def _title(figure: str) -> str:
    return f"Figure {figure}" if figure[0].isdigit() else f"{figure.replace('_', ' ').capitalize()} (not in the paper)"


def _said(claim: Mapping[str, Any]) -> Said:
    readings = [
        {"reading": r["name"], "verdict": WORDS[r["holds"]]} | {k: _short(v) for k, v in r.get("numbers", {}).items()}
        for r in claim.get("readings") or ()
    ]
    details = {"numbers": claim["numbers"], "readings of the paper": readings}
    return Said(claim["id"], claim["statement"], claim.get("verdict") or WORDS[claim["holds"]], claim["holds"], details)


def _short(number: Any) -> Any:
    """A number with its threshold in a few words; anything else as it is."""
    if not isinstance(number, Mapping) or "value" not in number:
        return number
    bounds = {sign: number[name] for name, sign in (("at_least", "≥"), ("at_most", "≤")) if name in number}
    said = [_finite(number["value"]), number.get("unit", ""), *(f"({sign} {_finite(b)})" for sign, b in bounds.items())]
    return " ".join(filter(None, said))


def _finite(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
