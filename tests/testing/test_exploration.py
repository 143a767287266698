"""Every order in which messages of a small network can arrive, be lost, repeated and late.

What is explored are the transitions of docs/design/flows.md, 4.

Breadth first over states (books, early offers, everything that was ever sent), each visited once. A server sends, after
every commit, every SYNC that its books allow, and the network keeps them all for ever: sending less, losing, repeating,
reordering and delaying are then choices of what to deliver, and all of them are explored. A server may publish or skip
its next round at any moment (its deadlines are not modelled, so more is explored than can happen) and may crash at any
moment, which takes its early offers. CONFIDE_DEPTH=1, 2, ... explores more than the default 0.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from confide.deploy.machines import exchange
from confide.deploy.machines.exchange import Clock, LieError, OtherBytesError, Rules
from confide.deploy.machines.sync import Sync
from confide.deploy.store.books import Balance, Books, Changes, as_vector
from confide.privacy.ledger import FREE
from confide.testing.rehearsal import server_identity
from invariants import bounded

DEPTH = int(os.environ.get("CONFIDE_DEPTH", "0"))
PLAN = bytes(32)
WEIGHTS = {(0, 1): 21845, (1, 2): 13107}  # a third and a fifth: every flow is rounded
CLOCK = Clock(2**31, 0, 2**31)  # there is none
IDENTITIES = tuple(server_identity(p).public for p in range(3))
SIGN = [cache(server_identity(p).sign) for p in range(3)]
PAIR, PATH = ((0, 1),), ((0, 1), (1, 2))
NONE, USED = -1, -2
Edges = tuple[tuple[int, int], ...]


class FoundError(AssertionError):
    """What must not happen did; the message has the way there."""


class Local(NamedTuple):
    """One server. The ghosts are what a protocol cannot see: they are checked against, never read by it."""

    books: Books
    early: tuple[tuple[int, int, bytes], ...]  # (neighbour, round, message): volatile
    entered: tuple[tuple[int, int, int], ...]  # ghost: (neighbour, round, flow)
    reached: tuple[int, ...]  # ghost: the highest `decided` in any message that was delivered, by neighbour
    life: int = 0  # ghost: how often its store was rolled back


class Step(NamedTuple):
    """What a delivery led to: the server after it, and the alarm that it raised."""

    after: int
    alarm: str = ""


class State(NamedTuple):
    locals: tuple[int, ...]
    sent: int  # bits: messages ever sent
    copy: int = NONE  # an earlier local of server 0: a copy of its store

    @property
    def servers(self) -> object:
        return self.locals, self.copy


@dataclass
class World:
    """Interned locals and messages, and the transitions between them, each worked out once."""

    edges: Edges
    rounds: int
    window: int = 2
    rules: list[Rules] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    messages: list[Sync] = field(default_factory=list)
    _local_ids: dict[object, int] = field(default_factory=dict)
    _message_ids: dict[Sync, int] = field(default_factory=dict)
    _fresh: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _sends: dict[tuple[int, int], int] = field(default_factory=dict)
    _delivered: dict[tuple[int, int], Step] = field(default_factory=dict)
    _idle: dict[int, int] = field(default_factory=dict)  # bits of the messages that do nothing to a server
    _moves: dict[tuple[int, int], list[tuple[str, int]]] = field(default_factory=dict)
    _to: dict[int, int] = field(default_factory=dict)  # bits of the messages to a server
    _offers: dict[tuple[int, int], dict[bytes, int]] = field(default_factory=dict)  # (server, round) -> bits by bytes
    _checked: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.P = 1 + max(max(e) for e in self.edges)
        for p in range(self.P):
            weights = {a + b - p: WEIGHTS[a, b] for a, b in self.edges if p in (a, b)}
            self.rules.append(Rules(p, PLAN, weights, self.rounds, self.window, 1, 2**40, IDENTITIES, by_link=False))
        self._to = dict.fromkeys(range(self.P), 0)

    def start(self) -> State:
        ids = []
        for p in range(self.P):
            m = tuple(self.rules[p].weights)
            ids.append(self.local(p, Local(Books.fresh(np.zeros(1, np.int64), m), (), (), (0,) * len(m))))
        return self._with_sent(State(tuple(ids), 0), range(self.P))

    def __str__(self) -> str:
        return f"{len(self.locals)} of one server, {len(self._checked)} of all, {len(self.messages)} messages"

    # Interning

    def local(self, p: int, x: Local) -> int:
        b = x.books
        key = (
            p, b.decided, b.published, b.contribution.tobytes(),
            tuple((n, total.tobytes()) for n, total in b.balances.values()),
            tuple(b.seen.values()), tuple(tuple(sorted(r.items())) for r in b.open.values()),
            tuple(sorted(b.out.items())), tuple(sorted(b.signed.items())), x.early, x.entered, x.reached, x.life,
        )  # fmt: skip
        found = self._local_ids.setdefault(key, len(self.locals))
        if found == len(self.locals):
            self.locals.append(x)
        return found

    def _message(self, s: Sync) -> int:
        found = self._message_ids.setdefault(s, len(self.messages))
        if found == len(self.messages):
            self.messages.append(s)
            self._to[s.receiver] |= 1 << found
            if s.offer is not None:
                bits = self._offers.setdefault((s.sender, s.offer[0]), {})
                bits[s.offer[1]] = bits.get(s.offer[1], 0) | 1 << found
        return found

    # What a server does

    def fresh(self, p: int, at: int, m: int) -> list[int]:
        """The SYNCs that these books allow to a neighbour; `ask` is left out, since an answer is one of them."""
        if (at, m) not in self._fresh:
            b = self.locals[at].books
            offers = (None, *sorted(b.open[m]))
            found = [self._message(exchange.make_sync(b, self.rules[p], m, epoch=0, offer=i)) for i in offers]
            self._fresh[at, m] = found
        return self._fresh[at, m]

    def sends(self, p: int, at: int) -> int:
        if (p, at) not in self._sends:
            self._sends[p, at] = sum({1 << x for m in self.rules[p].weights for x in self.fresh(p, at, m)})
        return self._sends[p, at]

    def deliver(self, p: int, at: int, message: int) -> Step:
        """As `Server._on_sync`."""
        if (at, message) not in self._delivered:
            self._delivered[at, message] = self._deliver(p, self.locals[at], self.messages[message], at)
        return self._delivered[at, message]

    def _deliver(self, p: int, x: Local, s: Sync, at: int) -> Step:
        m, books = s.sender, x.books
        try:
            if exchange.own_beyond(books, self.rules[p], s):
                return Step(at, "seen")
            heard = exchange.on_sync(books, self.rules[p], s, CLOCK)
            early = x.early if heard.early is None else self._keep(x.early, m, *heard.early)
        except LieError:  # only skips were lost
            return Step(at, "seen")
        except OtherBytesError:
            return Step(at, "other bytes")
        k = books.neighbours.index(m)
        reached = (*x.reached[:k], max(x.reached[k], s.decided), *x.reached[k + 1 :])
        after = self._commit(p, x._replace(early=early, reached=reached), heard.changes, s.offer and (m, *s.offer))
        return Step(after, "balance" if heard.unbalanced else "")

    def _keep(self, early: tuple[tuple[int, int, bytes], ...], m: int, i: int, blob: bytes) -> tuple[object, ...]:
        """As `Server._keep_early`."""
        mine = {j: b for n, j, b in early if n == m}
        if mine.get(i, blob) != blob:
            raise OtherBytesError
        if i in mine or len(mine) >= self.window:
            return early
        return tuple(sorted((*early, (m, i, blob))))

    def moves(self, p: int, at: int) -> list[tuple[str, int]]:
        """What it does unasked."""
        if (p, at) not in self._moves:
            self._moves[p, at] = list(self._moves_of(p, self.locals[at]))
        return self._moves[p, at]

    def _moves_of(self, p: int, x: Local) -> Iterator[tuple[str, int]]:
        b = x.books
        if b.decided < self.rounds:
            i = b.decided + 1
            psi = b.w + 1000 * 7**p * i
            o = psi + 10**6 * (1 + p) + 10**5 * i + 10**7 * x.life  # another life draws other noise
            sent = dict.fromkeys(b.neighbours, o)
            yield "publishes", self._commit(p, x, exchange.publish(b, self.rules[p], psi, sent, FREE, 0, SIGN[p]))
            yield "skips", self._commit(p, x, exchange.skip(b, self.rules[p], i, 0))
        for offer in x.early:
            m, i, blob = offer
            if i <= b.decided:
                rest = x._replace(early=tuple(e for e in x.early if e != offer))
                yield f"takes early {i}", self._commit(p, rest, exchange.on_early(b, self.rules[p], m, i, blob), offer)
        if x.early:
            yield "crashes", self.local(p, x._replace(early=()))

    def _commit(self, p: int, x: Local, c: Changes, offer: tuple[int, int, bytes] | None = None) -> int:
        books = x.books.copy()
        books.apply(c)
        bounded(OnlyRules(self.rules[p]), books)  # I5
        entered = x.entered
        if c.balances:
            require(offer is not None and c.balances.keys() == {offer[0]}, f"I1: a flow entered {p} without an offer")
            m, i, blob = offer or (0, 0, b"")
            expected = exchange.flow(self.rules[p].weights[m], as_vector(blob), as_vector(x.books.message(i, m) or b""))
            change = c.balances[m].total - x.books.balances[m].total
            require(np.array_equal(change, expected), f"I1: another flow than that of round {i} entered {p}")
            require((m, i) not in {(a, b) for a, b, _ in entered}, f"I1: round {i} from {m} entered {p} twice")
            entered = tuple(sorted((*entered, (m, i, int(expected[0])))))
        require(books.decided >= x.books.decided, "I4: fell back")
        paid = [e for e in c.entries if e.event.kind == "message"]
        require((c.contribution is not None) == (len(paid) == 1), "I4: contributed and did not pay, or the reverse")
        return self.local(p, x._replace(books=books, entered=entered))

    # Of all servers together

    def _with_sent(self, s: State, who: Iterator[int] | range | tuple[int, ...]) -> State:
        sent = s.sent
        for p in who:
            sent |= self.sends(p, s.locals[p])
        return s._replace(sent=sent)

    def put(self, s: State, p: int, at: int) -> State:
        found = (*s.locals[:p], at, *s.locals[p + 1 :])
        return State(found, s.sent | self.sends(p, at), s.copy)

    def heard(self, s: State, p: int) -> Iterator[tuple[int, Step]]:
        """Every delivery that does anything."""
        at = s.locals[p]
        bits = s.sent & self._to[p] & ~self._idle.get(at, 0)
        while bits:
            low = bits & -bits
            message = low.bit_length() - 1
            step = self.deliver(p, at, message)
            if step == (at, ""):
                self._idle[at] = self._idle.get(at, 0) | low
            else:
                yield message, step
            bits ^= low

    def tell(self, step: object) -> str:
        """For the reader of a failure."""
        if not isinstance(step, tuple):
            return str(step)
        s = self.messages[step[1]]
        offers = f" offering {s.offer[0]}" if s.offer else ""
        return f"{step[0]} hears {s.sender} (d={s.decided}, open={s.open}, seen={s.seen}{offers})"

    def one_message_each(self, s: State) -> bool:
        """I3."""
        return all(sum(bool(bits & s.sent) for bits in by.values()) <= 1 for by in self._offers.values())

    def check(self, s: State) -> None:
        """I2, L1 and L2 depend on the servers alone, so that each combination is looked at once."""
        require(self.one_message_each(s), "I3: two messages for one round")
        if s.locals not in self._checked:
            self._checked.add(s.locals)
            self.pending(s.locals)
            require(self.healed(s) == "", "L1: it does not heal quietly")

    def pending(self, at: tuple[int, ...]) -> None:
        """I1, I2: what entered one end only is open at both ends, with both messages; the rest cancels."""
        for p, m in self.edges:
            a, b = self.locals[at[p]], self.locals[at[m]]
            mine = {i: f for n, i, f in a.entered if n == m}
            theirs = {i: f for n, i, f in b.entered if n == p}
            require(all(mine[i] == -theirs[i] for i in mine.keys() & theirs), "I1: the ends reckon differently")
            for x, n, flows in ((a, m, mine), (b, p, theirs)):
                require(int(x.books.balances[n].total[0]) == sum(flows.values()), "I2: a balance is not its flows")
                require(x.books.balances[n].n == len(flows), "I2: flows are miscounted")
            for i in mine.keys() ^ theirs.keys():
                kept = all(i in x.books.open[n] and x.books.message(i, n) for x, n in ((a, m), (b, p)))
                require(kept, f"I2: round {i} entered one end, and is not open at both with both messages")

    def healed(self, s: State, *, cancel: bool = True) -> str:
        """Fresh SYNCs alone, nobody publishing: the alarms on the way (L1, and L2 where `cancel`).

        They close every round that both ends have decided; once all have decided the same round, everything.
        """
        at, alarms = list(s.locals), set()
        for last in (False, True):
            if last:
                to = max(self.locals[x].books.decided for x in at)
                for p in range(self.P):
                    while self.locals[at[p]].books.decided < to:
                        at[p] = next(after for what, after in self.moves(p, at[p]) if what == "skips")
            before: list[int] = []
            while before != at:
                before = list(at)
                for p, m in (*self.edges, *((m, p) for p, m in self.edges)):
                    for message in self.fresh(p, at[p], m):
                        at[m], alarm = self.deliver(m, at[m], message)
                        alarms.add(alarm)
            if alarms - {""}:
                return min(alarms - {""})
            for p, m in self.edges:
                a, b = self.locals[at[p]].books, self.locals[at[m]].books
                common = min(a.decided, b.decided)
                left = [i for i in (*a.open[m], *b.open[p]) if i <= common]
                require(not left, f"L1: rounds {left} of {p}-{m} stay open")
                same = not (a.balances[m].total + b.balances[p].total).any()
                if cancel:
                    require(same, f"L2: the balances of {p}-{m} do not cancel")
                elif last and not same:
                    return "silent"
        return ""


def require(holds: object, what: str) -> None:
    if not holds:
        raise FoundError(what)


class OnlyRules(NamedTuple):
    """What `bounded` reads of Terms."""

    rules: Rules


def explore(
    world: World,
    start: State,
    visit: Callable[[State], None],
    nexts: Callable[[State], Iterator[tuple[object, State]]],
    limit: int | None = None,
) -> int:
    """Breadth first; on failure a way there is told. Gives how many states were visited.

    A state is left out when another with the same servers has all its messages and more: whatever can happen in the
    one can happen in the other, and what must not happen stays true when messages are added.
    """
    came: dict[State, tuple[State, object] | None] = {start: None}
    most: dict[object, list[int]] = defaultdict(list)  # servers -> what was sent, none of which contains another
    queue, visited = deque([start]), 0
    while queue and (limit is None or visited < limit):
        state = queue.popleft()
        if state.sent not in most[state.servers] and state != start:
            continue  # left out since
        visited += 1
        try:
            visit(state)
            found = list(nexts(state))
        except AssertionError as e:
            way, x = [], came[state]
            while x is not None:
                way.append(world.tell(x[1]))
                x = came[x[0]]
            raise FoundError(f"{e}\nafter: " + "; ".join(reversed(way))) from e
        for what, following in found:
            if following in came:
                continue
            known, sent = most[following.servers], following.sent
            if not any(sent | more == more for more in known):
                known[:] = [*(less for less in known if less | sent != sent), sent]
                came[following] = (state, what)
                queue.append(following)
    return visited


def honest(world: World) -> Callable[[State], Iterator[tuple[object, State]]]:
    """Every step of every server; an alarm is an error."""

    def nexts(s: State) -> Iterator[tuple[object, State]]:
        for p in range(world.P):
            at = s.locals[p]
            for what, after in world.moves(p, at):
                yield f"{p} {what}", world.put(s, p, after)
            for message, (after, alarm) in world.heard(s, p):
                if alarm:
                    raise FoundError(f"a false alarm: {alarm}, when {world.tell((p, message))}")
                yield (p, message), world.put(s, p, after)

    return nexts


def rolled_back(world: World) -> Callable[[State], Iterator[tuple[object, State]]]:
    """As `honest`, but once the store of server 0 is copied, and once it is replaced by that copy, at any moments.

    After that, what raises an alarm is not followed further.
    """
    go_on = honest(world)

    def nexts(s: State) -> Iterator[tuple[object, State]]:
        if s.copy == USED:
            for p in range(world.P):
                for what, after in world.moves(p, s.locals[p]):
                    yield f"{p} {what}", world.put(s, p, after)
                for message, (after, alarm) in world.heard(s, p):
                    if not alarm:
                        yield (p, message), world.put(s, p, after)
            return
        yield from go_on(s)
        if s.copy == NONE:
            yield "a copy is made", s._replace(copy=s.locals[0])
        elif s.copy != s.locals[0]:
            yield "the copy is put back", put_back(world, s)

    return nexts


def put_back(world: World, s: State) -> State:
    old = world.locals[s.copy]._replace(early=(), life=1)
    return world.put(s, 0, world.local(0, old))._replace(copy=USED)


# An honest network


@pytest.mark.parametrize(
    ("edges", "rounds", "limit"),
    [
        (PAIR, 1, None),
        (PAIR, 2, None),
        (PATH, 1, None),
        *([(PAIR, 3, 100_000 * 4**DEPTH), (PATH, 2, 100_000 * 4**DEPTH)] if DEPTH else []),
    ],
)
def test_everything_that_can_happen(
    edges: Edges, rounds: int, limit: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1 to I5 hold in every state; from every state fresh SYNCs close everything (L1), and then balances cancel (L2).

    No state raises an alarm: `seen` never exceeds what the receiver has decided, nobody gets other bytes, and the
    balances never seem to differ, nor does a settled neighbour ever count more flows than this end.
    """
    world = World(edges, rounds)
    states = explore(world, world.start(), world.check, honest(world), limit)
    with capsys.disabled():
        print(f"\n{world.P} servers, {rounds} rounds: {states} states{'' if limit is None else ' (not all)'}, {world}")
    assert states > 100


# Wrong worlds


def test_a_store_that_is_older_than_what_left(capsys: pytest.CaptureFixture[str]) -> None:
    """A store is put back to any earlier commit, at any moment, and everything goes on in every possible order.

    What `seen` finds, exactly: a neighbour's next SYNC stops the server if and only if any SYNC that had a later
    `decided` than the copy ever arrived at that neighbour.
    What it cannot find: publications whose every SYNC is lost or still on its way. Then the server publishes the same
    round again, with other noise, and whoever listens on the wire has both: no neighbour can know. Nor does it help
    once the server has decided as many rounds again as before: a boot must wait to hear its neighbours (and does, for
    one deadline). Nor does it see a copy with the same `decided`, that lacks only flows.
    What the balances find: of all that `seen` misses, nothing stays silent where it does harm. Whenever the balances
    do not cancel in the end, there is an alarm on the way: other bytes, another hash for as many flows, or a settled
    neighbour that counts more flows than this end.
    """
    world, found = World(PAIR, 1 + (DEPTH > 1)), Counter[str]()

    def visit(s: State) -> None:
        if s.copy == USED:
            found[world.healed(s, cancel=False)] += 1
        elif s.copy != NONE:
            back = put_back(world, s)
            reached = world.locals[s.locals[1]].reached[0]
            for message in world.fresh(1, s.locals[1], 0):
                stops = world.deliver(0, back.locals[0], message).alarm == "seen"
                require(stops == (reached > world.locals[s.copy].books.decided), "`seen` stops wrongly, or does not")

    states = explore(world, world.start(), visit, rolled_back(world))
    with capsys.disabled():
        print(f"\nrolled back: {states} states, {dict(found)}")
    assert found.keys() == {"", "seen", "other bytes", "balance"}  # and never "silent"


def test_a_neighbour_that_counts_more_flows_is_an_alarm() -> None:
    """What finds a copy that lacks only flows: the shortest such story, at the transition itself."""
    world = World(PAIR, 1)
    rules, (a, b) = world.rules, (world.locals[x].books.copy() for x in world.start().locals)
    for p, books in enumerate((a, b)):
        x = np.full(1, 1000 * (p + 1))
        books.apply(exchange.publish(books, rules[p], x, {1 - p: x}, FREE, 0, SIGN[p]))
    copy = a.copy()
    a.apply(exchange.on_sync(a, rules[0], exchange.make_sync(b, rules[1], 0, epoch=0, offer=1), CLOCK).changes)
    b.apply(exchange.on_sync(b, rules[1], exchange.make_sync(a, rules[0], 1, epoch=0, offer=1), CLOCK).changes)
    assert not b.open[0]
    told = exchange.make_sync(b, rules[1], 0, epoch=0)
    assert not exchange.on_sync(a, rules[0], told, CLOCK).unbalanced
    heard = exchange.on_sync(copy, rules[0], told, CLOCK)
    assert heard.void == [1]
    assert heard.unbalanced


@pytest.mark.parametrize("bit", [0, 17, 63])
def test_a_balance_that_changed_by_itself(bit: int) -> None:
    """From every state of an honest network: once settled, both ends raise the alarm at the next SYNC of the other.

    (A contribution that changed by itself is found by nobody but the store's own checks.)
    """
    world, states = World(PAIR, 1), []
    explore(world, world.start(), states.append, honest(world))
    settled = 0
    for s in states:
        x = world.locals[s.locals[0]]
        n, total = x.books.balances[1]
        books = x.books.copy()
        books.apply(Changes(balances={1: Balance(n, total ^ np.int64(1 << bit if bit < 63 else -(1 << 63)))}))
        flipped = world.local(0, x._replace(books=books))
        assert world.healed(s._replace(locals=(flipped, s.locals[1])), cancel=False) == "balance"
        if not books.open[1] and not world.locals[s.locals[1]].books.open[0]:
            settled += 1
            (to_0,), (to_1,) = world.fresh(1, s.locals[1], 0), world.fresh(0, flipped, 1)
            same = n == world.locals[s.locals[1]].books.balances[0].n
            assert same
            assert world.deliver(0, flipped, to_0).alarm == "balance"
            assert world.deliver(1, s.locals[1], to_1).alarm == "balance"
    assert settled
