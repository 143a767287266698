"""Events as lines for people, as JSON, for whoever counts, and the last thing that went wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from confide.deploy import observing
from confide.deploy.observing import observe


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("confide")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    observing.hooks.clear()


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    observing.start("text")
    observe("published", {"round": 3, "offered": [1, 2], "why": "two words", "one": "word", "lines": "a\nb"})
    logging.getLogger("somebody.else").info("not interesting")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('INFO    published round=3 offered=[1, 2] why="two words" one=word lines="a\\nb"'), line


def test_a_line_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    last = observing.start("json")
    observe("finished", {"pending": {1: [4, 5]}, "x": b"\x00"})
    assert last.text is None
    observe("alarm", {"what": "server 1 sent\nother bytes"})
    try:
        raise ValueError("inside")
    except ValueError:
        logging.getLogger("confide.x").exception("it failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(x["event"], x["level"]) for x in lines] == [
        ("finished", "info"),
        ("alarm", "error"),
        ("it failed", "error"),
    ]
    assert lines[0]["pending"] == {"1": [4, 5]}
    assert "ValueError: inside" in lines[2]["exception"]
    assert last.text is not None
    assert last.text.endswith("it failed")


def test_hooks_hear_every_event_once() -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    observing.hooks.append(lambda event, fields: heard.append((event, fields)))
    observe("published", {"round": 1})
    observe("down", {"neighbour": 2})
    assert heard == [("published", {"round": 1}), ("down", {"neighbour": 2})]
