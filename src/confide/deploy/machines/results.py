"""What became of releases: the result that a server believes, whose it is, and who was told which.

A result comes from a relay to which this server gave its answer of that attempt: who else could know the sum? It is
signed, kept before its receipt is acknowledged, and the first one stays whatever is told later. A server countersigns
what it was told, and all signatures go round (`passing`), so that a relay that tells two different results is found
out by whoever hears of both.

*A relay signs one result of an attempt, ever.* All sessions of an attempt give the same sum, unless a server sends
other words in another session; then the relay says so and tells nothing, or it would itself have signed two.
"""

from __future__ import annotations

import hashlib

from confide.base.errors import RunError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.release import Circle, Context, Reason, Released
from confide.deploy.store.books import Changes, Outcome, Told, Vector, as_bytes, as_vector
from confide.secure import receipts as signed
from confide.secure.receipts import Receipt

Row = tuple[int, int, int, int]  # of `Books.receipts`


class Results:
    def __init__(self, context: Context) -> None:
        self.context, self.desk = context, context.desk
        self._said: set[tuple[int, tuple[int, ...]]] = set()  # disputes of which there was an alarm

    @property
    def released(self) -> dict[int, Released]:
        """By attempt: what this server has."""
        return {attempt: self._released(attempt, found) for attempt, found in self.desk.books.released.items()}

    @property
    def receipts(self) -> dict[Row, Receipt]:
        return {row: Receipt(*row[:3], *told) for row, told in sorted(self.desk.books.receipts.items())}

    def look(self) -> None:
        """Whoever signed different results is named, once since the start."""
        for attempt, relays in signed.disputes(self.receipts.values()):
            if (attempt, relays) in self._said:
                continue
            self._said.add((attempt, relays))
            who = " and ".join(map(self.desk.terms.who, relays))
            if len(relays) == 1:
                self.desk.alarm(f"{who} told two different results of attempt {attempt} and signed both: it lied")
            else:
                why = "one of them lied, or a server sent them different words"
                self.desk.alarm(f"{who} told different results of attempt {attempt}: {why}; the first one told stays")

    def sign(self, attempt: int, total: Vector) -> tuple[bytes, str]:
        """As a relay: its signature under the result, kept before it leaves; or "" and why there is none."""
        me, sha = self.desk.rules.me, _hash(total)
        mine = {told.sha256 for row, told in self.desk.books.receipts.items() if row[:2] == (attempt, me)}
        if mine - {sha}:
            why = f"attempt {attempt}: the sum is another than this server signed before; a server sent other words"
            self.desk.alarm(why)
            return b"", why
        signature = signed.sign(self.context.part.identity, self.desk.rules.plan, attempt, me, sha)
        if not self._keep(Changes(receipts=self._rows([self._receipt(attempt, me, sha, signature)]))):
            return b"", f"attempt {attempt}: the result could not be kept, see the log; release again when it can"
        return signature, ""

    def take(self, result: messages.Result, circle: Circle) -> bool:
        """What a relay says: whether it is what this server keeps."""
        c, books, attempt = self.context, self.desk.books, result.attempt
        if books.relays.get((attempt, result.sender)) != result.epoch:
            c.refuse(Reason.RELAY)
            return False
        if len(result.total) != 8 * self.desk.rules.length:
            c.refuse(Reason.MALFORMED)
            return False
        total = as_vector(result.total)
        sha, public = _hash(total), self.desk.rules.identities[result.sender]
        if not signed.is_signed(public, result.signature, self.desk.rules.plan, attempt, result.sender, sha):
            c.refuse(Reason.SIGNATURE)
            return False
        known = books.released.get(attempt)
        changes = Changes(receipts=self._rows([self._receipt(attempt, result.sender, sha, result.signature)]))
        if known is None:
            changes.released[attempt] = Outcome(circle.terms.servers, total)
            self.desk.ports.at("release.result")
        if changes and not self._keep(changes):
            return False
        if known is not None and _hash(known.total) != sha:
            c.refuse(Reason.OTHER_RESULT)
            return False
        if known is None:
            self.desk.ports.at("release.kept")
            found = self._released(attempt, books.released[attempt])
            c.part.released(found)
            self.desk.ports.log("released", attempt=attempt, servers=found.servers, sigma=found.sigma)
        return True

    def hear(self, receipts: tuple[Receipt, ...]) -> set[Row] | None:
        """What others were told, by a neighbour: the rows that it has, or None where something does not hold."""
        rules, part = self.desk.rules, self.context.part
        known = {(*row[:3], told.sha256) for row, told in self.desk.books.receipts.items()}
        new = [r for r in receipts if r[:4] not in known]
        last = part.planned + self.desk.epoch_number  # no attempt is further
        if any(r.attempt > last or not signed.holds(r, rules.plan, rules.identities) for r in new):
            self.context.refuse(Reason.RECEIPT)
            return None
        if (rows := self._rows(new)) and not self._keep(Changes(receipts=rows)):
            return None
        theirs = {r[:4] for r in receipts}
        return {row for row, told in self.desk.books.receipts.items() if (*row[:3], told.sha256) in theirs}

    def _receipt(self, attempt: int, relay: int, sha: bytes, signature: bytes) -> Receipt:
        me, plan = self.desk.rules.me, self.desk.rules.plan
        own = signed.countersign(self.context.part.identity, plan, attempt, relay, me, sha)
        return Receipt(attempt, relay, me, sha, signature, own)

    def _rows(self, receipts: list[Receipt]) -> dict[Row, Told | None]:
        """Those that are new: of two different results of a relay there is evidence, and no third one is kept."""
        books, found = self.desk.books.receipts, dict[Row, Told | None]()
        which = {(row[:2], told.sha256): row[3] for row, told in books.items()}
        results = {n: max(k for (r, _), k in which.items() if r == n) + 1 for n, _ in which}
        for r in receipts:
            relay = r.attempt, r.relay
            if (relay, r.sha256) not in which:
                which[relay, r.sha256] = results.get(relay, 0)
                results[relay] = which[relay, r.sha256] + 1
            row = (*relay, r.server, which[relay, r.sha256])
            if row[3] < 2 and row not in books:
                found[row] = Told(*r[3:])
        return found

    def _keep(self, changes: Changes) -> bool:
        """What is told again can wait for a disk that is full: the server goes on, and acknowledges nothing."""
        try:
            self.desk.commit(changes, "result")
        except RunError as e:
            self.desk.ports.log("not kept", why=str(e))
            return False
        self.look()
        return True

    def _released(self, attempt: int, found: Outcome) -> Released:
        terms = self.context.part.terms.left(found.servers)
        return Released.of(terms, attempt, found.total)


def _hash(total: Vector) -> bytes:
    return hashlib.sha256(as_bytes(total)).digest()
