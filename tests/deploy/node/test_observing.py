"""Events as lines for people, as JSON, for whoever counts, and the last thing that went wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from confide.deploy.node import observing
from confide.deploy.node.observing import Observer


def started(form: str, node: str) -> Observer:
    observer = Observer()
    observer.start(form, node)
    return observer


def written(observer: Observer, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """All that it said: a thread writes it."""
    observer.stop()
    return capfd.readouterr().err.splitlines()


def test_a_line_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    observer = started("text", "server-one")
    observer.log("skipped", round=3, why="two words")
    logging.getLogger("somebody.else").info("not interesting")
    (line,) = written(observer, capfd)
    assert line.endswith('WARNING server-one skipped round=3 why="two words"'), line


def test_a_line_for_machines(capfd: pytest.CaptureFixture[str]) -> None:
    observer = started("json", "server-one")
    last = observer.last_error
    observer.observe("finished", {"pending": {1: [4, 5]}, "secret": b"\x00"})
    assert last.text is None
    observer.observe("alarm", {"what": "server 1 sent\nother bytes"})
    lines = [json.loads(line) for line in written(observer, capfd)]
    assert [(x["event"], x["level"], x["node"]) for x in lines] == [
        ("finished", "info", "server-one"),
        ("alarm", "error", "server-one"),
    ]
    assert lines[0]["fields"] == {"pending": {"1": [4, 5]}}  # and nothing that is not on the list
    assert last.text is not None
    assert "alarm" in last.text


def test_hooks_hear_every_event_once() -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    observer = Observer()
    observer.hooks.append(lambda event, fields: heard.append((event, fields)))
    observer.observe("published", {"round": 1})
    Observer().observe("published", {"round": 7})  # of another node in this process
    observer.log("down", neighbour=2)
    assert heard == [("published", {"round": 1}), ("down", {"neighbour": 2})]


def test_what_a_peer_repeats_is_written_once_a_minute(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(observing.Repeats.__init__, "__defaults__", (lambda: now[0],))
    observer = started("text", "n")
    for at in (0.0, 1.0, 59.0, 61.0, 62.0):
        now[0] = at
        observer.observe("refused", {"why": "client c9 of beta: revoked"})
        observer.observe("skipped", {"round": 1, "why": "the same"})
    lines = written(observer, capfd)
    assert sum("skipped" in line for line in lines) == 5  # our own events are all there
    refused = [line for line in lines if "refused" in line]
    assert len(refused) == 2
    assert "again=2" in refused[1]
    assert "again" not in refused[0]


@pytest.mark.parametrize(
    ("event", "field"),
    [("refused", "why"), ("epoch refused", "why"), ("alarm", "what"), ("differs", "what"), ("stream closed", "why")],
)
def test_a_peer_that_never_says_the_same_twice_is_counted(
    event: str, field: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a member could fill the disk: the numbers in an epoch that does not hold are its own."""
    now = [0.0]
    monkeypatch.setattr(observing.Repeats.__init__, "__defaults__", (lambda: now[0],))
    observer = started("text", "n")
    repeats = next(f for f in logging.getLogger().handlers[0].filters if isinstance(f, observing.Repeats))
    for n in range(3 * observing.KNOWN):
        observer.observe(event, {field: f"it removes server {n}"})
    observer.observe("busy", {"why": "another thing is said at once"})
    now[0] = 61.0
    observer.observe(event, {field: "it removes server 99999"})
    lines = written(observer, capfd)
    assert [event in line for line in lines] == [True] * observing.KNOWN + [False, True]
    assert f"again={2 * observing.KNOWN}" in lines[-1]
    assert list(map(len, filter(None, repeats._written.values()))) == [1, 1]


def test_a_server_cannot_fill_the_log_of_its_clients(capfd: pytest.CaptureFixture[str]) -> None:
    """It welcomes and refuses them in turns, says that all is over and that it is not, and begins rounds too early."""
    observer = started("text", "n")
    for n in range(5 * observing.KNOWN):
        for event, fields in (("enrolled", {"client": 1}), ("finished", {}), ("early", {"round": n})):
            observer.observe(event, fields)
    assert len(written(observer, capfd)) == 2 + observing.KNOWN
