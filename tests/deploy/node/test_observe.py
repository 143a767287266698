"""Logs and figures say what the ledgers say, and nothing else: no value of a model, no key, no word of a stranger."""

from __future__ import annotations

import ast
import io
import json
import logging
import math
import random
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import confide.deploy
from confide.base.errors import InputError
from confide.deploy.machines import client, client_messages, cohort, exchange, release, rounds, sync
from confide.deploy.machines.ports import Phase
from confide.deploy.node.client_metrics import ClientMetrics
from confide.deploy.node.metrics import COMMITS, REFUSALS, SKIPS, STREAMS, Metered, Metrics
from confide.deploy.node.observe import EVENTS, LINES, OTHER, AllowList, Json, Text, public, said
from confide.deploy.store.books import Balance, Books, Changes, Flow, Status
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.secure.keys import Secret
from confide.secure.session import Why
from confide.testing.network import Cut, Network, Weather
from confide.testing.rehearsal import PLAN, scripted
from desks import publication
from patience import LIMIT
from ports import own_ports

SOURCES = Path(confide.deploy.__file__).parent
STREAM_SOURCES = ("streams.py", "listener.py", "dialer.py")
CLIENT_SOURCES = ("client.py", "client_process.py", "own_training.py", "training_process.py", "warned.py")
ROUNDS = 12


# ---- helpers


def source(name: str) -> Path:
    (found,) = SOURCES.rglob(name)
    return found


def samples(metrics: Metrics | ClientMetrics | str) -> dict[tuple[str, str], float]:
    """(name, label values joined) -> value."""
    read = text_string_to_metric_families(metrics) if isinstance(metrics, str) else metrics.registry.collect()
    return {(s.name, ",".join(s.labels.values())): s.value for family in read for s in family.samples}


def shown(metrics: Metrics) -> str:
    """As whoever asks gets it."""
    return generate_latest(metrics.registry).decode()


def by_label(metrics: Metrics, name: str) -> dict[str, float]:
    return {label: value for (n, label), value in samples(metrics).items() if n == name and value}


class Log:
    """A logger of its own, whose lines can be read."""

    def __init__(self, make: Callable[..., logging.Formatter] = Json, node: str = "alpha") -> None:
        self.allowed = AllowList()
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.addFilter(self.allowed)
        handler.setFormatter(make(node, self.allowed))
        self.logger = logging.Logger("confide.test", logging.DEBUG)
        self.logger.addHandler(handler)

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        self.logger.info(event, extra={"fields": fields})

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


class Watched:
    """A scripted network whose servers log through the list into figures, as `server_process` has it."""

    def __init__(
        self, weather: Weather, seed: int, graph: str = "ring:4", rounds: int = ROUNDS, **options: Any
    ) -> None:
        self.units = scripted(Graph.parse(graph), scheme("homomorphic", 0.5), rounds=rounds, **options)
        self.logs = [Log(node=f"u{p}") for p in range(len(self.units))]
        self.metrics = []
        self.events: list[Counter[tuple[str, str]]] = [Counter() for _ in self.units]
        for unit in self.units:
            metrics = Metrics({m: f"u{m}" for m in unit.terms.weights})
            unit.store = Metered(unit.store, metrics)
            self.metrics.append(metrics)
        self.net = Network(self.units, weather, seed, sent=self._sent, log=self._log)

    def _sent(self, source: Any, target: Any, raw: bytes) -> None:
        if source[0] == "server":
            self.metrics[source[1]].message("out", target[0], len(raw))

    def _log(self, p: int, event: str, **fields: Any) -> None:
        self.logs[p].observe(event, fields)
        self.metrics[p].event(event, fields)
        self.events[p][event, str(fields.get("why", ""))] += 1
        if fields.get("late"):
            self.events[p]["late", str(fields["neighbour"])] += 1

    def run(self, until: float = 2000.0) -> None:
        self.net.run(until=until, done=lambda: self.net.finished() and self.net.calm)
        for p in range(len(self.units)):
            self.metrics[p].snapshot(self.status(p))

    def status(self, p: int) -> dict[str, Any]:
        """The part of `server_status.machine_status` that needs no certificates."""
        server = self.units[p].server
        assert server is not None
        peers = [{"server": m, "up": n.up, "open": sorted(server.books.open[m])} for m, n in server.neighbours.items()]
        return {
            "phase": str(server.phase),
            "round": server.books.decided,
            "rounds": server.rules.rounds,
            "published": server.books.published,
            "allowed": server.terms.allowed,
            "refusals": dict(server.refusals),
            "peers": peers,
            "clients": {"of": 1, "connected": 1},
            "statement": {"accounts": [spent("links", 0.5 * server.books.published), spent("own-server", None)]},
        }


def spent(threat: str, epsilon: object) -> dict[str, Any]:
    """Of a statement about what has left, as far as figures look at it."""
    return {"threat": threat, "level": "client", "adjacency": "replace", "delta": 1e-5, "epsilon": epsilon}


@contextmanager
def naming(seed: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as e:
        raise AssertionError(f"seed {seed}: {e}") from e


# ---- the list


def literals(wanted: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of a function or method with this name, anywhere in the deployment."""
    for place, name, call in calls():
        if name == wanted:
            yield place, call


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """In which file, of what, and the call."""
    return [
        (path.name, node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node)
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def words_of(wanted: str) -> set[tuple[str, str]]:
    """(file, word) for every text in the arguments of such calls."""
    return {
        (place, node.value)
        for place, call in literals(wanted)
        for argument in call.args
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_the_list_has_every_event_and_field_that_the_sources_log() -> None:
    found: dict[str, set[str]] = {}
    for wanted in ("log", "_log", "observe"):
        for place, call in literals(wanted):
            if not (call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)):
                continue
            event = call.args[0].value
            names = {k.arg for k in call.keywords}
            if wanted == "observe" and len(call.args) > 1 and isinstance(call.args[1], ast.Dict):
                names |= {k.value for k in call.args[1].keys if isinstance(k, ast.Constant)}
            assert event in EVENTS, f"{place}: {event}"
            assert names <= EVENTS[event].keys(), f"{place}: {event}: {names - EVENTS[event].keys()}"
            found.setdefault(event, set()).update(n for n in names if n)
    listener = {event for place, event in words_of("told") if place == "server_process.py"}
    assert listener == {"connected", "disconnected"}
    assert listener <= EVENTS.keys()
    assert {"published", "skipped", "applied", "void", "released", "alarm", "stopped", "started"} <= found.keys()
    from_text = {event for event, _ in LINES.values()} | {OTHER}
    unused = EVENTS.keys() - found.keys() - from_text - listener
    assert not unused, "events that nobody logs"


def test_the_list_has_every_line_of_text_that_the_sources_log() -> None:
    found = set()
    for path in (source(name) for name in (*STREAM_SOURCES, *CLIENT_SOURCES)):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "_log"
            ):
                found.add(node.args[1 if node.func.attr == "log" else 0].value)  # type: ignore[attr-defined]
    assert found == LINES.keys()
    for event, names in LINES.values():
        assert set(names) == EVENTS[event].keys()


DAMAGED = "the transcript of the round is damaged"
LABELS = """
server: malformed
server: an epoch that does not hold
server: of another plan
server: not from whom it says, or not for this server
server: from a server that is no neighbour
server: from a server that was removed
server: open rounds must be sorted, unique and at most as many as the window
server: a round that is not decided or not in the plan
server: an offer that is not among the sender's open records
server: an offer of another length
server: an offer is beyond the range that the plan proves
server: an offer without its signature
server: a signature that does not hold
server: a round that this clock has not reached; one of the two clocks is wrong, or it lies
server: it has seen a round of this server, it says, and shows no signature of it
server: a balance of another length
server: a balance of more flows than rounds
server: a balance beyond what so many flows can add up to
server: its rounds fell back, so its store is older than what left
client: malformed
client: no round is open
client: of another plan or version
client: not of this unit, or not whom it says
client: another round or attempt
client: not sampled
client: an update of the wrong kind or size
client: an update beyond its bound
client: a secure message, but sums are in clear
client: refused by the secure sum
release: malformed
release: a word out of place
release: for another run of a relay
release: of another plan
release: not from whom it says, or not for this server
release: from a server that was removed
release: an invitation to a session that is over
release: declined
release: the result of an attempt in which this server is not
release: another result
release: a result from a server to which none of the answers went that make it
release: a result that its relay did not sign
release: receipts from a server that is no neighbour
release: a receipt that does not hold
""".strip().splitlines()


def test_every_refusal_skip_and_commit_of_the_sources_has_its_word() -> None:
    assert sorted(REFUSALS) == sorted(LABELS), "what operators have in their rules"
    machines = "".join(path.read_text() for path in (SOURCES / "machines").glob("*.py"))
    for kind in (exchange.Reason, cohort.Reason, release.Reason, client.Reason, cohort.Failure, rounds.Skip):
        for reason in kind:
            assert f"{kind.__name__}.{reason.name}" in machines, f"nobody says {reason!r}"
    assert not words_of("refuse") | words_of("_refuse") | words_of("ExchangeError"), "not one of the reasons"
    assert set(re.findall(r'refusals\["([^"]+)"', machines)) == {"alarm"}
    commits = {
        call.args[1].value
        for name in ("_commit", "commit")
        for _, call in literals(name)
        if len(call.args) == 2 and isinstance(call.args[1], ast.Constant)
    }
    assert commits == set(COMMITS)
    closing = set()
    for _, call in literals("ClosingError"):
        if isinstance(call.args[-1], ast.Constant):
            closing.add(call.args[-1].value)
    counted = {w for name in STREAM_SOURCES for w in re.findall(r'counts\["(\w+)"\]', source(name).read_text())}
    assert closing | counted | {"overrun"} == set(STREAMS)
    for why in ("the budget is spent", "the sum came too late", "behind the neighbours", "no update arrived", DAMAGED):
        assert why in SKIPS


# ---- lines


def test_a_json_line() -> None:
    log, before = Log(), datetime.now(UTC)
    log.observe("published", {"round": 3, "clients": 5, "offered": [1, 2], "suspended": (4,)})
    (line,) = log.lines
    moment = datetime.fromisoformat(line.pop("time"))
    assert moment.tzinfo == UTC
    assert before - timedelta(seconds=1) < moment <= datetime.now(UTC)  # it is cut off, not rounded
    assert line == {
        "level": "info",
        "node": "alpha",
        "event": "published",
        "fields": {"round": 3, "clients": 5, "offered": [1, 2], "suspended": [4]},
    }
    assert not log.allowed.dropped


def test_a_line_for_people() -> None:
    log = Log(Text)
    log.observe("skipped", {"round": 3, "why": "no update arrived"})
    log.observe("connected", {"to": "beta"})
    log.observe("finished", {"pending": {2: [3, 4]}})
    lines = [line.split(" ", 1) for line in log.text.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment) for moment, _ in lines)
    assert [rest for _, rest in lines] == [
        'INFO    alpha skipped round=3 why="no update arrived"',
        "INFO    alpha connected to=beta",
        'INFO    alpha finished pending={"2":[3,4]}',
    ]


@pytest.mark.parametrize("make", [Json, Text])
def test_what_a_stranger_wrote_stays_on_its_line(make: Any) -> None:
    log = Log(make)
    forged = 'x"\n2026-01-01T00:00:00Z INFO alpha published round=7\r\x1b[2J\u2028' + "y " * 5000
    log.observe("refused", {"why": forged})
    log.observe("differs", {"with": "beta", "what": [forged] * 3})
    assert len(log.text.splitlines()) == 2
    assert not {"\x1b", "\u2028"} & set(log.text)
    assert len(log.text) < 3000


def test_lines_of_text_become_events_and_unknown_ones_lose_their_words() -> None:
    log = Log()
    log.logger.warning("no stream to %s: %s", "beta.example", "UNAVAILABLE: hunter2")
    log.logger.warning("round %d, attempt %d: %r", 3, 1, type("Aborted", (), {"why": Why.LEFT_OUT})())
    log.logger.warning("round %d, attempt %d: %r", 3, 1, type("Other", (), {"why": np.arange(5)})())
    log.logger.warning("the model is %s", np.array([123456789]))
    log.logger.warning(f"the model is {[123456789]}")
    log.logger.warning(ValueError("123456789"))
    assert [(line["event"], line["fields"]) for line in log.lines] == [
        ("no stream", {"to": "beta.example", "why": "UNAVAILABLE: hunter2"}),
        ("aborted", {"round": 3, "attempt": 1, "why": str(Why.LEFT_OUT)}),
        ("aborted", {"round": 3, "attempt": 1}),
        *[(OTHER, {"logger": "confide.test"})] * 3,
    ]
    assert "123456789" not in log.text
    assert log.allowed.dropped == {"field": 1, "line": 3}


@pytest.mark.parametrize("make", [Json, Text])
def test_an_exception_is_shown_without_its_words(make: Any) -> None:
    log = Log(make)
    try:
        try:
            raise KeyError("patient 4711")
        except KeyError as e:
            raise ValueError("could not convert 'patient 4711'") from e
    except ValueError:
        log.logger.exception(
            "the training of round %d failed, this client adds zeros: %s", 5, "ValueError", stack_info=True
        )
        log.logger.exception("whatever 4711")
    assert "4711" not in log.text
    assert len(log.text.splitlines()) == 2
    assert all(x in log.text for x in ("training failed", "ValueError", "KeyError", "node/test_observe.py"))


def test_a_formatter_of_somebody_else_has_no_words_of_an_exception_either() -> None:
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.Logger("confide.test")
    handler.addFilter(AllowList())
    logger.addHandler(handler)
    try:
        raise ValueError("patient 4711")
    except ValueError:
        logger.exception("the training of round %d failed, this client adds zeros: %s", 5, "ValueError")
    assert stream.getvalue() == "training failed\n"


def test_only_our_own_errors_say_why_a_process_failed() -> None:
    assert public("failed", {"kind": "RunError", "why": "the disk is full"})[1]["why"] == "the disk is full"
    shown, dropped = public("failed", {"kind": "ValueError", "why": "x = [0.1, 0.2]"})[1:]
    assert shown == {"kind": "ValueError"}
    assert dropped == {"field": 1}
    assert public("failed", {"why": "x = [0.1, 0.2]"})[1] == {}


def test_a_record_that_passes_twice_is_counted_once_and_other_handlers_see_what_is_left() -> None:
    log, seen = Log(), []
    last = logging.Handler()
    last.addFilter(log.allowed)
    last.emit = lambda record: seen.append(said(record))  # type: ignore[method-assign]
    log.logger.addHandler(last)
    log.observe("void", {"neighbour": 1, "round": 2, "w": np.zeros(3)})
    assert log.allowed.dropped == {"field": 1}
    assert seen == ["void neighbour=1 round=2"]


# ---- secrets

NUMBERS = [918273645, -564738291]
RAW = bytes(range(200, 232))
PLANTED: list[Any] = [
    np.array(NUMBERS),
    np.int64(NUMBERS[0]),
    np.float64(9.18273645e77),
    RAW,
    bytearray(RAW),
    memoryview(RAW),
    Secret(RAW),
    [Secret(RAW)],
    [RAW, 1],
    NUMBERS,
    [float(NUMBERS[0])],
    {"w": NUMBERS},
    {1: [RAW]},
    {1: NUMBERS},
    RAW.hex(),
    f"key {RAW.hex()}",
    "-----BEGIN PRIVATE KEY-----\n" + RAW.hex(),
    Exception(RAW.hex()),
    object(),
    None,
]


def shows_secret(text: str) -> bool:
    low = text.lower()
    return any(
        sign in low
        for sign in (
            *(str(abs(n)) for n in NUMBERS),
            "e+77",  # however it is rounded; no time of day looks like it
            RAW.hex()[17:33],
            "\\xc8\\xc9",
            "200, 201",
            "200,201",
            "begin priv",
        )
    )


def test_what_is_planted_would_show_without_the_list() -> None:
    assert sum(shows_secret(str(x) + repr(x)) for x in PLANTED) >= 12


@pytest.mark.parametrize("make", [Json, Text])
def test_a_planted_secret_never_shows(make: Any) -> None:
    """Under a name that is not in the list, and under every name that is."""
    log, metrics = Log(make), Metrics({1: "beta"})
    for secret in PLANTED:
        for event, kinds in [*EVENTS.items(), ("a new event", {})]:
            for name in [*kinds, "w", "key"]:
                fields = {name: secret, "round": 1}
                log.observe(event, fields)
                metrics.event(event, fields)
    assert log.allowed.dropped["field"] > len(PLANTED) * len(EVENTS)
    assert not shows_secret(log.text)
    assert not shows_secret(shown(metrics))


def test_secrets_of_a_snapshot_never_show() -> None:
    metrics = Metrics({1: "beta"})
    for secret in PLANTED:
        metrics.snapshot({"round": secret, "rounds": secret, "published": secret, "w": secret})
        plain = (
            spent("links", secret),
            spent(str(secret), 1.0),
            spent(f"links:{secret}", 1.0),
            spent("links", 1.0) | {"level": secret, "delta": secret},
        )
        metrics.snapshot({"statement": {"accounts": plain, "refused": [{"threat": secret}]}})
        metrics.snapshot(
            {"clients": {"connected": secret}, "phase": str(secret), "peers": [{"server": 1, "up": secret}]}
        )
        metrics.snapshot({"refusals": {f"server: {secret!r}": 1}, "network": {str(secret): 1}})
    assert not shows_secret(shown(metrics))


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(EVENTS)),
    st.dictionaries(
        st.sampled_from(sorted({n for kinds in EVENTS.values() for n in kinds})),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda x: st.lists(x, max_size=3) | st.dictionaries(st.integers() | st.text(), x, max_size=3),
            max_leaves=5,
        ),
        max_size=5,
    ),
)
def test_any_fields_give_one_line_of_json_and_no_new_series(event: str, fields: dict[str, Any]) -> None:
    log, metrics = Log(), Metrics({1: "beta"})
    before = samples(metrics).keys()
    log.observe(event, fields)
    metrics.event(event, fields)
    assert len(log.text.splitlines()) == len(log.lines) == 1
    assert log.lines[0]["fields"].keys() <= EVENTS[event].keys()
    assert samples(metrics).keys() == before


# ---- figures


def weather(seed: int) -> Weather:
    r = random.Random(seed)  # noqa: S311
    cuts = []
    for _ in range(3):
        a = r.randrange(4)
        t = r.uniform(0, 80)
        for x, y in ((a, (a + 1) % 4), ((a + 1) % 4, a))[: r.choice((1, 2))]:
            cuts.append(Cut(t, t + r.choice((5, 40)), ("server", x, 0), ("server", y, 0)))
    return Weather(
        delay=(0.001, r.choice((0.01, 1.0, 3.0))),
        loss=r.choice((0.0, 0.1, 0.3)),
        duplication=r.choice((0.0, 0.3)),
        crash=r.choice((0.0, 0.003, 0.01)),
        client_crash=r.choice((0.0, 0.1)),
        away=r.choice(((0.01, 0.02), (5.0, 30.0))),
        cuts=tuple(cuts),
        calm=120.0,
    )


def check_against_books(run: Watched) -> Counter[str]:
    """Every figure against the ledger, the books and the events; what there was of each."""
    total: Counter[str] = Counter()
    for p, unit in enumerate(run.units):
        found, server, metrics = samples(run.metrics[p]), unit.server, run.metrics[p]
        assert server is not None
        books = unit.store.load()
        entries = list(unit.store.entries())
        kinds = Counter(e.event.kind for e in entries)
        assert found["confide_publications_total", ""] == kinds["message"] == books.published
        assert found["confide_skipped_rounds_total", ""] == kinds["skip"]
        assert found["confide_round", ""] == books.decided == len(entries)
        assert found["confide_publications_paid", ""] == books.published
        assert found["confide_epsilon", "links,client,replace,1e-05"] == 0.5 * books.published
        assert found["confide_epsilon", "own-server,client,replace,1e-05"] == math.inf  # nothing protects from it
        offered = Counter(m for e in entries for m in e.offered)
        for m in unit.terms.weights:
            n, waiting = books.balances[m].n, sum(not flow.applied for flow in books.open[m].values())
            assert found["confide_flows_applied_total", f"u{m}"] == n
            assert found["confide_flows_void_total", f"u{m}"] == offered[m] - n - waiting
            assert found["confide_flows_pending", f"u{m}"] == len(books.open[m])
            assert found["confide_flows_late_total", f"u{m}"] == run.events[p]["late", str(m)]
            assert found["confide_flows_dropped_total", f"u{m}"] == 0
            assert found["confide_neighbour_up", f"u{m}"] == server.neighbours[m].up
            total.update(applied=n, void=offered[m] - n - waiting, late=run.events[p]["late", str(m)])
        skips = {why: n for (event, why), n in run.events[p].items() if event == "skipped"}
        assert by_label(metrics, "confide_skips_total") == skips
        assert found["confide_alarms_total", ""] == len(server.alarms) == 0
        words = Counter(line["event"] for line in run.logs[p].lines)
        assert by_label(metrics, "confide_events_total") == words
        assert not run.logs[p].allowed.dropped, "an honest machine logs nothing that is not in the list"
        assert found["confide_phase", str(Phase.FINISHED)] == 1
        total.update(skips=kinds["skip"], publications=kinds["message"])
        total.update(reasons=len(skips))
    return total


def test_figures_are_those_of_ledgers_and_books_under_faults() -> None:
    total: Counter[str] = Counter()
    for seed in range(6):
        run = Watched(weather(seed), seed)
        run.run()
        with naming(seed):
            assert run.net.finished()
            total += check_against_books(run)
            total["crashes"] += run.net.crashes.total()
    assert all(total[name] for name in ("applied", "void", "late", "skips", "crashes", "reasons")), total


def test_messages_bytes_and_commits_are_counted() -> None:
    sent: Counter[tuple[int, str]] = Counter()
    size: Counter[tuple[int, str]] = Counter()
    run = Watched(Weather(), 1)
    count = run.net._sent
    assert count is not None

    def counting(source: Any, target: Any, raw: bytes) -> None:
        if source[0] == "server":
            sent[source[1], target[0]] += 1
            size[source[1], target[0]] += len(raw)
        count(source, target, raw)

    run.net._sent = counting
    commits: Counter[int] = Counter()
    for p, unit in enumerate(run.units):
        plain = unit.store.commit

        def commit(*arguments: Any, p: int = p, plain: Any = plain) -> None:
            commits[p] += 1
            plain(*arguments)

        unit.store.commit = commit  # type: ignore[method-assign]
    run.run()
    for p, metrics in enumerate(run.metrics):
        for role in ("client", "server"):
            assert samples(metrics)["confide_messages_total", f"out,{role}"] == sent[p, role] > 0
            assert samples(metrics)["confide_message_bytes_total", f"out,{role}"] == size[p, role] > 0
        counted = by_label(metrics, "confide_commit_seconds_count")
        assert sum(counted.values()) == commits[p] > 0
        assert counted["publish"] == counted["round.open"] == ROUNDS
        assert OTHER not in counted


def test_seconds_are_measured() -> None:
    now = [100.0]
    metrics = Metrics({}, clock=lambda: now[0])

    class Slow:
        def load(self) -> Books:
            return Books.fresh(np.zeros(2, np.int64), ())

        def commit(self, *_: Any) -> None:
            now[0] += 0.03

    store = Metered(Slow(), metrics)  # type: ignore[arg-type]
    store.load()
    store.commit(Changes(decided=1), name="skip")
    assert ("confide_round_seconds", "") in samples(metrics)
    now[0] += 7.0
    store.commit(Changes(decided=2), name="skip")
    found = samples(metrics)
    assert math.isclose(found["confide_round_seconds", ""], 7.03)
    assert math.isclose(found["confide_commit_seconds_sum", "skip"], 0.06)
    assert found["confide_commit_seconds_bucket", "skip,0.02"] == 0
    assert found["confide_commit_seconds_bucket", "skip,0.05"] == 2


def test_flows_that_enter_close_void_and_are_dropped_in_one_commit() -> None:
    metrics, zero = Metrics({1: "beta", 2: "gamma"}), np.zeros(2, np.int64)
    metrics.loaded(Books.fresh(zero, (1, 2)))

    def flows() -> list[float]:
        names = [f"confide_flows_{what}" for what in ("applied_total", "void_total", "dropped_total", "pending")]
        return [samples(metrics)[name, "beta"] for name in names]

    metrics.committed(Changes(open={1: {i: Flow() for i in range(1, 5)}}), "publish", 0.0)
    assert flows() == [0, 0, 0, 4]
    both = Changes(balances={1: Balance(1, zero)}, open={1: {1: None, 2: None}})  # one entered and closed, one was void
    metrics.committed(both, "sync", 0.0)
    assert flows() == [1, 1, 0, 2]
    one = Changes(balances={1: Balance(2, zero)}, open={1: {3: Flow(True), 4: None}})
    metrics.committed(one, "sync", 0.0)
    assert flows() == [2, 2, 0, 1]
    metrics.committed(Changes(open={1: {3: Flow(True, False, b"x")}}), "sync", 0.0)
    metrics.committed(Changes(open={1: {3: None}}), "sync", 0.0)
    assert flows() == [2, 2, 0, 0]
    metrics.committed(Changes(open={1: {5: Flow(), 6: Flow()}}), "publish", 0.0)
    metrics.committed(Changes(open={1: {5: None, 6: None}}, rejoined=6, status={1: Status.ADRIFT}), "rejoin", 0.0)
    metrics.committed(Changes(balances={1: Balance(9, zero)}, status={1: Status.OPEN}), "balance", 0.0)
    assert flows() == [2, 2, 2, 0]
    metrics.committed(Changes(open={7: {1: Flow()}}), "publish", 0.0)  # no neighbour: no series
    assert samples(metrics)["confide_flows_applied_total", "gamma"] == 0


def test_a_restart_takes_up_the_open_flows() -> None:
    metrics, zero = Metrics({1: "beta"}), np.zeros(2, np.int64)
    books = Books.fresh(zero, (1,))
    books.open[1] = {3: Flow(True), 4: Flow()}
    books.decided = 4
    metrics.loaded(books)
    assert samples(metrics)["confide_flows_pending", "beta"] == 2
    assert samples(metrics)["confide_round", ""] == 4
    metrics.committed(Changes(open={1: {3: None, 4: None}}), "sync", 0.0)
    assert samples(metrics)["confide_flows_void_total", "beta"] == 1


def test_rejoin_is_charged_and_not_published() -> None:
    run = Watched(Weather(), 2, rounds=6)
    run.net.run(until=25.0)
    run.net.kill(0, away=1e9)
    run.net.run(until=40.0)
    server = run.units[0].server
    assert server is None
    before = samples(run.metrics[0])["confide_publications_total", ""]
    run.net._boot(0, rejoin=True)
    run.run()
    found, books = samples(run.metrics[0]), run.units[0].store.load()
    charged = found["confide_charged_rounds_total", ""]
    assert charged == run.events[0]["rejoined", ""] * charged > 0
    assert before + charged <= found["confide_publications_total", ""] + charged == books.published


# ---- nothing of the clients' time


def test_what_clients_do_shows_when_the_round_is_decided() -> None:
    metrics = Metrics({1: "beta"})
    metrics.loaded(Books.fresh(np.zeros(2, np.int64), (1,)))
    metrics.snapshot({"phase": "wait"})
    start = shown(metrics)
    for direction in ("in", "out"):
        metrics.message(direction, "client", 1000)
    metrics.committed(Changes(transcript=b"x"), "adapt", 0.25)
    metrics.snapshot({"phase": "adapt", "refusals": {"client: not sampled": 1}})
    found = samples(metrics)
    assert found["confide_messages_total", "in,client"] == found["confide_message_bytes_total", "out,client"] == 0
    assert found["confide_commit_seconds_count", "adapt"] == found["confide_refusals_total", "client: not sampled"] == 0
    changed = set(shown(metrics).splitlines()) ^ set(start.splitlines())
    assert {line.split("{")[0] for line in changed} == {"confide_phase"}
    metrics.committed(Changes(decided=1), "skip", 0.1)
    found = samples(metrics)
    assert found["confide_messages_total", "in,client"] == found["confide_commit_seconds_count", "adapt"] == 1
    assert found["confide_message_bytes_total", "out,client"] == 1000
    metrics.message("in", "client", 10)  # after the last round no decision comes
    metrics.snapshot({"phase": "finished", "refusals": {"client: not sampled": 1}})
    found = samples(metrics)
    assert found["confide_message_bytes_total", "in,client"] == 1010
    assert found["confide_refusals_total", "client: not sampled"] == 1


def test_a_servers_message_shows_at_once() -> None:
    metrics = Metrics({1: "beta"})
    metrics.message("in", "server", 10)
    assert samples(metrics)["confide_message_bytes_total", "in,server"] == 10


# ---- hostile peers


def test_hostile_messages_make_no_new_series() -> None:
    run = Watched(Weather(), 3, graph="path:3", rounds=4)
    for metrics in run.metrics:
        metrics.snapshot({"statement": {"accounts": [spent("links", 0.0), spent("own-server", None)]}})
    series = [samples(metrics).keys() for metrics in run.metrics]
    r = random.Random(5)  # noqa: S311
    server_words: list[Callable[[], bytes]] = [
        lambda: r.randbytes(r.randrange(200)),
        lambda: sync.encode(
            sync.Sync(PLAN, r.randrange(9), 0, 1, r.randrange(2**31), ((r.randrange(9), False),), None, True, 0, None)
        ),
        lambda: sync.encode(sync.Sync(r.randbytes(32), 0, 0, 1, 0, (), None, True, 0, None)),
        lambda: sync.encode(sync.TellEpoch(PLAN, 0, 1, r.randbytes(50))),
        lambda: sync.encode(sync.Sync(PLAN, 0, 7, 1, 0, (), None, False, 0, None)),
        lambda: offered(r.randbytes(16)),
    ]
    client_words: list[Callable[[], bytes]] = [
        lambda: r.randbytes(r.randrange(200)),
        lambda: client_messages.encode(client_messages.Enrol(r.randrange(9), r.randbytes(32), 1, r.randrange(99))),
        lambda: client_messages.encode(client_messages.Update(r.randint(1, 9), r.randint(1, 9), r.randbytes(16))),
    ]

    def offered(message: bytes) -> bytes:
        """Signed, and each time another."""
        shown = (publication(PLAN, 0, 1, message),)
        return sync.encode(sync.Sync(PLAN, 0, 0, 1, 1, ((1, False),), (1, message), True, 0, None, shown))

    def attack() -> None:
        server = run.units[1].server
        assert server is not None
        for _ in range(10):
            server.from_server(run.net.now, 0, r.choice(server_words)())
            server.from_client(run.net.now, 0, r.choice(client_words)())

    for t in range(30):
        run.net.at(1.0 + t, attack)
    run.run()
    assert [samples(metrics).keys() for metrics in run.metrics] == series
    server, metrics = run.units[1].server, run.metrics[1]
    assert server is not None
    refused = by_label(metrics, "confide_refusals_total")
    assert refused == {why: n for why, n in server.refusals.items() if why != "alarm"}
    assert len(refused.keys() - {OTHER}) == len(refused) >= 5
    assert samples(metrics)["confide_alarms_total", ""] == server.refusals["alarm"] > 0
    assert not run.logs[1].allowed.dropped


def test_reasons_beyond_the_lists_are_one_series() -> None:
    metrics = Metrics({1: "beta"})
    before = samples(metrics).keys()
    for n in range(200):
        metrics.event("skipped", {"round": n, "why": f"reason {n}"})
        metrics.event(f"event {n}", {f"field {n}": n})
        metrics.event("down", {"neighbour": n + 2, "round": 1})
        metrics.event("published", {"round": 1, "clients": 1, "offered": [n + 2], "suspended": [n + 2]})
        metrics.committed(Changes(open={n + 2: {1: Flow()}}), f"commit {n}", 0.0)
    totals = {f"server: {n}": 2 for n in range(200)}
    metrics.snapshot(
        {"refusals": totals, "network": totals, "peers": [{"server": n, "up": True} for n in range(2, 99)]}
    )
    metrics.snapshot({"refusals": totals, "network": totals, "phase": "elsewhere"})
    assert samples(metrics).keys() == before
    for name in ("skips", "events", "refusals", "streams"):
        assert by_label(metrics, f"confide_{name}_total")[OTHER] in (200, 400)
    metrics.event("skipped", {"round": 1, "why": f"{DAMAGED}: anything"})
    assert by_label(metrics, "confide_skips_total")[DAMAGED] == 1


def test_totals_of_another_object_are_followed_over_its_restart() -> None:
    metrics = Metrics()
    for n in (3, 5, 5, 2, 4):
        metrics.snapshot({"refusals": {"server: malformed": n}})
    assert by_label(metrics, "confide_refusals_total") == {"server: malformed": 9}


def test_no_bound_is_infinite_and_certificates_have_an_end() -> None:
    metrics = Metrics()
    said = {"accounts": [spent("own-client", None)], "refused": [{"threat": "links", "reason": "no proof"}]}
    metrics.snapshot(spent("links", None) | {"statement": said, "certificate_until": "2030-01-01T00:00:00+00:00"})
    found = samples(metrics)
    for who in ("own-client", "links"):
        assert found["confide_epsilon", f"{who},client,replace,1e-05"] == math.inf
    assert found["confide_certificate_expiry_timestamp_seconds", ""] == datetime(2030, 1, 1, tzinfo=UTC).timestamp()


def test_a_client_is_enrolled_until_it_is_disconnected() -> None:
    metrics = ClientMetrics()
    seen = []
    for event in ("connected", "enrolled", "disconnected", "finished", "nonsense"):
        metrics.event(event, {})
        found = samples(metrics)
        seen.append([found[f"confide_{name}", ""] for name in ("connected", "enrolled", "finished")])
    assert seen == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
    metrics.expires(datetime(2030, 1, 1, tzinfo=UTC))
    metrics.dropped(Counter(field=2))
    with metrics.serve("127.0.0.1:0") as endpoint:
        found = samples(get(endpoint.port))
    assert found["confide_certificate_expiry_timestamp_seconds", ""] == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert found["confide_log_dropped_total", "field"] == 2
    assert not any("epsilon" in name or "round" in name for name, _ in found)


def test_what_the_log_dropped_is_a_figure() -> None:
    metrics = Metrics()
    allowed = AllowList(metrics.dropped)
    logger = logging.Logger("confide.test")
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(allowed)
    logger.addHandler(handler)
    logger.info("void", extra={"fields": {"neighbour": 1, "w": 2}})
    logger.info("a secret")
    assert by_label(metrics, "confide_log_dropped_total") == {"field": 1, "line": 1}


# ---- over HTTP


def get(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=LIMIT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def test_whoever_asks_gets_what_the_registry_has() -> None:
    metrics = Metrics({1: "beta"})
    metrics.event("published", {"round": 1, "clients": 7, "offered": [1], "suspended": []})
    (port,) = own_ports(1)
    with metrics.serve(f"127.0.0.1:{port}") as endpoint:
        assert endpoint._server.server_address == ("127.0.0.1", port)
        found = samples(get(endpoint.port))
        assert found["confide_round_clients", ""] == 7
        assert found == samples(metrics)
        metrics.event("alarm", {"what": "x"})
        assert samples(get(endpoint.port))["confide_alarms_total", ""] == 1
    with pytest.raises(OSError, match="refused"):
        get(endpoint.port)
    with metrics.serve(f"127.0.0.1:{port}") as again:  # it is free again
        assert again.port == port


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    metrics = Metrics()
    with metrics.serve("127.0.0.1:0") as endpoint:
        with pytest.raises(InputError, match=rf"metrics = '127.0.0.1:{endpoint.port}': port {endpoint.port} is in use"):
            metrics.serve(f"127.0.0.1:{endpoint.port}")
        assert get(endpoint.port)


@pytest.mark.parametrize(
    "address", ["", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "host:-1", "[::1]", "1.2:٣"]
)
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="metrics = "):
        Metrics().serve(address)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InputError, match="not this machine's"):
        Metrics().serve("192.0.2.1:0")
