"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from confide.experiments.reproduce import Report


def print_claims(report: Report) -> None:
    """One row a claim: verdict, sentence, the numbers behind it."""
    console = Console(highlight=False)
    table = Table(title="Claims", title_justify="left", show_lines=True)
    table.add_column("")
    table.add_column("holds")
    table.add_column("claim", ratio=3)
    table.add_column("numbers", ratio=4)
    for claim in report.claims:
        verdict = "[green]yes[/green]" if claim.holds else "[red]NO[/red]"
        numbers = "\n".join(_lines(claim.to_dict()["numbers"]))
        table.add_row(claim.id, verdict, escape(claim.statement), escape(numbers))
    console.print(table)
    paper = any(claim.id[0] in "abcde" for claim in report.claims)  # the paper compares at equal noise
    privacy = "; the paper's figures are at equal noise, their privacy: not accounted" if paper else ""
    console.print(f"{len(report.files)} files in {report.seconds:.1f} s{privacy}", soft_wrap=True)
    for path in report.files:
        if path.endswith((".png", ".json")):
            console.print(f"  {path}", soft_wrap=True, markup=False)


def _lines(numbers: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')}: {_short(value)}" for name, value in numbers.items()]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_short(v) for v in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return {None: "never", True: "yes", False: "no"}.get(value, str(value))
