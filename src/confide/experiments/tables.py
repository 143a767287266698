"""Tables on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from confide.experiments.claims import Claim
from confide.experiments.reproduce import Report

WIDTH = 80
COLOURS = {True: "green", False: "red", None: "yellow"}


class TimeLeft(ProgressColumn):
    """From the work done so far and how long it took; counts down in between."""

    def render(self, task: Task) -> Text:
        began, last, done = task.fields["began"], task.fields["last"], task.completed
        if not done:
            return Text("")
        left = (last - began) / done - (self.now() - began)
        return Text(f"{max(left, 0.0):.0f} s left")

    @staticmethod
    def now() -> float:
        return time.monotonic()


@contextmanager
def announced(console: Console) -> Iterator[Callable[[str, float], None]]:
    """What `reproduce` tells of its work: a bar on a terminal, a line a figure elsewhere."""
    if not console.is_terminal:
        yield lambda what, done: console.print(f"{what} ...")
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeLeft(), console=console, transient=True) as bar:
        began = TimeLeft.now()
        task = bar.add_task("", total=1.0, began=began, last=began)
        yield lambda what, done: bar.update(task, description=what, completed=done, last=TimeLeft.now())


def print_claims(report: Report) -> None:
    """One row a claim: its verdict, the claim in a few words, the number that decides beside its threshold."""
    console = Console(highlight=False, width=WIDTH)
    for title, claims in (("Claims", report.claims), ("Claims about privacy", report.privacy_claims)):
        if not claims:
            continue
        console.print(_table(title, claims))
        console.print(f"{tally(claims)}\n")
    console.print(f"{len(report.files)} files in {report.seconds:.1f} s", soft_wrap=True)
    for path in report.files:
        if path.endswith((".png", ".json", ".html")):
            console.print(f"  {path}", soft_wrap=True, markup=False)


def tally(claims: Sequence[Claim]) -> str:
    """How many hold, and how many of those under some readings only; what is a surprise is said.

    >>> tally([Claim("a1", "", True), Claim("a2", "", False)])
    '1 of 2 hold, 0 under some readings only; not as expected: a2'
    """
    holding = [c for c in claims if c.holds]
    some = [c for c in holding if any(outcome.holds is False for outcome in c.readings)]
    said = f"{len(holding)} of {len(claims)} hold, {len(some)} under some readings only"
    if undecided := [c.id for c in claims if c.holds is None]:
        said += f"; not decided: {', '.join(undecided)}"
    if surprising := [c.id for c in claims if not c.as_expected]:
        said += f"; not as expected: {', '.join(surprising)}"
    return said


def _table(title: str, claims: Sequence[Claim]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name, width in (("", 2), ("verdict", 24), ("claim", 31), ("decided by", 20)):
        table.add_column(name, width=width, no_wrap=name != "verdict", overflow="ellipsis")
    for claim in claims:
        verdict = f"[{COLOURS[claim.holds]}]{escape(claim.said)}[/]"
        table.add_row(claim.id, verdict, escape(claim.line or claim.statement), escape(claim.deciding))
    return table
