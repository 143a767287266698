"""What a person sees of a reproduction: a table of 80 columns, a last line, a bar with the time that is left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from confide.experiments import tables
from confide.experiments.claims import Claim, Condition, Outcome
from confide.experiments.regression_claims import SAID
from confide.experiments.reproduce import Report
from confide.experiments.tables import TimeLeft, announced, print_claims, tally


def claim(id: str, *verdicts: bool | None, expected: bool = True) -> Claim:
    readings = [Outcome(f"r{n}", [Condition("x", -1.0 if v is False else 1.0, 0.0, error=3.0 * (v is None))])
                for n, v in enumerate(verdicts)]  # fmt: skip
    return Claim(id, f"sentence {id}", verdicts[0], {}, f"line {id}", "2", expected, readings=tuple(readings))


def test_the_last_line() -> None:
    claims = [claim("a1", True, True), claim("a2", True, False), claim("a3", True, None)]
    assert tally(claims) == "3 of 3 hold, 1 under some readings only"
    claims += [claim("b1", None), claim("c5", False, expected=False)]
    assert tally(claims) == "3 of 5 hold, 1 under some readings only; not decided: b1"
    claims += [claim("b2", False, True)]
    assert tally(claims).endswith("; not as expected: b2")


def test_the_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    long = "holds unless the own message is clean, client links or not and weights are lazy; not with ring:10"
    known = [
        Claim(s.id, s.statement, True, {}, s.line, s.figure, verdict=long, readings=claim("x", True).readings)
        for s in SAID.values()
    ]
    print_claims(Report(known, ["a.png", "b.svg", "claims.json"], 1.0, privacy_claims=[claim("p1", False)]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for said in known:
        (row,) = [line for line in lines if line.startswith(f"{said.id} ")]
        assert said.line in row, "a claim is one line"
        assert "1 dB (>= 0)" in row
    assert f"{len(known)} of {len(known)} hold, 0 under some readings only" in lines
    assert "Claims about privacy" in "".join(lines)
    assert lines[-3:] == ["3 files in 1.0 s", "  a.png", "  claims.json"]


def test_a_line_a_figure_where_nobody_watches() -> None:
    out = io.StringIO()
    with announced(Console(file=out)) as announce:
        announce("(a) three", 0.0)
        announce("(b) noise", 0.5)
    assert out.getvalue() == "(a) three ...\n(b) noise ...\n"


def test_a_bar_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter took 10 seconds, so that three more are 30; 4 seconds later 26 are left, and never less than none."""
    clock = [100.0]
    monkeypatch.setattr(TimeLeft, "now", staticmethod(lambda: clock[0]))
    bars: list[Progress] = []

    class Kept(Progress):
        def __init__(self, *columns: object, **options: object) -> None:
            super().__init__(*columns, **options)  # type: ignore[arg-type]
            bars.append(self)

    monkeypatch.setattr(tables, "Progress", Kept)

    def left() -> str:
        return TimeLeft().render(bars[0].tasks[0]).plain

    with announced(Console(file=io.StringIO(), force_terminal=True)) as announce:
        announce("(a) three", 0.0)
        assert left() == ""
        clock[0] = 110.0
        announce("(b) noise", 0.25)
        assert left() == "30 s left"
        clock[0] = 114.0
        assert left() == "26 s left"
        clock[0] = 200.0
        assert left() == "0 s left"
        assert bars[0].tasks[0].description == "(b) noise"
