"""The page of a report: every picture inside, every claim once, and nothing that asks anybody for anything."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from confide.experiments.page import write_page
from confide.figures import figures

VOID = {"meta", "img", "br"}
STEMS = {
    "figure_2_three_algorithms": "2",
    "figure_4_step_size": "4",
    "figure_4_learning_curves": "4",
    "consensus_step": "",
}


class Page(HTMLParser):
    """What is in it, and where; also that every element that is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.said: dict[str, list[str]] = {}  # headings, each with the ids of its claims
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "action", "data", "srcset", "poster", "background"):
                (self.pictures if tag == "img" else self.addresses).append(value or "")
        if tag == "article":
            self.said[list(self.said)[-1]].append(dict(attrs)["id"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "h2":
            self.said[data] = []


def claim(id: str, holds: bool | None = True, **more: Any) -> dict[str, Any]:
    return {"id": id, "statement": f"what {id} says, if 1 < 2 & so on", "holds": holds, "numbers": {"a_db": [1.0, None]}, **more}  # fmt: skip # noqa: E501


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    figure = Figure(figsize=(1, 1))
    files = [path for stem in STEMS for path in figures.save(figure, tmp_path / stem, f"caption <of> {stem}")]
    readings = [
        {
            "name": "own message clean",
            "holds": False,
            "numbers": {"loss": {"value": 3.21, "at_least": 10.0, "unit": "dB"}},
        },
        {"name": "ring", "holds": None, "numbers": {"another": {"value": 7.5, "at_most": 9.0, "unit": ""}}},
    ]
    claims = [
        claim("a1", figure="2", verdict="holds unless the own message is clean", readings=readings),
        claim("c1", False, figure=4),
        claim("e1", None, figure="consensus_step"),
        claim("f1"),
    ]
    privacy = [claim("p1", False, expected=False), claim("p5", figure="consensus_step")]
    return {"files": [*files, "claims.json"], "claims": claims, "privacy_claims": privacy, "interrupted": False}  # fmt: skip # noqa: E501


def written(report: dict[str, Any], folder: Path) -> str:
    path = write_page(report, folder)
    assert path == str(folder / "index.html")
    return Path(path).read_text(encoding="utf-8")


def test_pictures_are_inside_and_nothing_else_is_asked_for(report: dict[str, Any], tmp_path: Path) -> None:
    html = written(report, tmp_path)
    page, start = Page(html), "data:image/svg+xml;base64,"
    assert all(picture.startswith(start) for picture in page.pictures)
    inside = [base64.b64decode(picture.removeprefix(start), validate=True) for picture in page.pictures]
    assert inside == [(tmp_path / f"{stem}.svg").read_bytes() for stem in STEMS]
    assert page.addresses == []
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for picture in page.pictures:
        html = html.replace(picture, "")
    assert "//" not in html
    assert "url(" not in html
    assert "@import" not in html
    for stem in STEMS:
        assert page.text.count(f"caption <of> {stem}") == 1


def test_every_claim_is_told_once_below_its_figure(report: dict[str, Any], tmp_path: Path) -> None:
    page = Page(written(report, tmp_path))
    assert page.said == {
        "Figure 2": ["a1"],
        "Figure 4": ["c1"],
        "Consensus step (not in the paper)": ["e1", "p5"],
        "Further claims": ["f1"],
        "What the paper says of privacy": ["p1"],
    }
    for id in ("a1", "c1", "e1", "f1", "p1", "p5"):
        assert page.text.count(f"what {id} says, if 1 < 2 & so on") == 1
    for verdict in (
        "a1: holds unless the own message is clean",
        "c1: does not hold, which is not expected",
        "p1: does not hold, as is known",
        "e1: not decided",
        "own message clean",
        "3.21 dB (≥ 10)",
        "7.5 (≤ 9)",  # a reading has columns of its own
        "Verdicts on the claims about learning: holds 2, does not hold 1, not decided 1.",
    ):
        assert page.text.count(verdict) == 1, verdict


def test_a_report_that_was_cut_short_says_so(tmp_path: Path) -> None:
    html = written({"files": [], "claims": [], "interrupted": True}, tmp_path)
    assert "This run was interrupted" in Page(html).text


def test_the_same_report_is_the_same_page(report: dict[str, Any], tmp_path: Path) -> None:
    assert written(report, tmp_path) == written(report | {"seconds": 3.0}, tmp_path)
