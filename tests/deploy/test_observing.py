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
    observing.start("text", "server-one")
    observe("skipped", {"round": 3, "why": "two words"})
    logging.getLogger("somebody.else").info("not interesting")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('WARNING server-one skipped round=3 why="two words"'), line


def test_a_line_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    last = observing.start("json", "server-one")
    observe("finished", {"pending": {1: [4, 5]}, "secret": b"\x00"})
    assert last.text is None
    observe("alarm", {"what": "server 1 sent\nother bytes"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(x["event"], x["level"], x["node"]) for x in lines] == [
        ("finished", "info", "server-one"),
        ("alarm", "error", "server-one"),
    ]
    assert lines[0]["fields"] == {"pending": {"1": [4, 5]}}  # and nothing that is not on the list
    assert last.text is not None
    assert "alarm" in last.text


def test_hooks_hear_every_event_once() -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    observing.hooks.append(lambda event, fields: heard.append((event, fields)))
    observe("published", {"round": 1})
    observe("down", {"neighbour": 2})
    assert heard == [("published", {"round": 1}), ("down", {"neighbour": 2})]
