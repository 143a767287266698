"""All of releases in one machine: a server's own part in them, its relay while it relays one, and what it passes on."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from math import inf as NEVER

from confide.base.errors import RunError
from confide.base.wire import MalformedError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.passing import Passing
from confide.deploy.machines.ports import Desk
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.release import Circle, Context, Part, Reason
from confide.deploy.machines.release_messages import FromNeighbour, FromRelay
from confide.deploy.machines.releaser import Releaser


class Releases:
    """All that a server has to do with releases: its own part in them, and its relay while it relays one."""

    def __init__(self, desk: Desk, part: Part) -> None:
        self.desk, self._own = desk, deque[bytes]()
        self.context = Context(desk, part, self._send)
        self.releaser = Releaser(self.context)
        self.results = self.releaser.results
        self.passing = Passing(self.context, self.results)
        self.relay: Relay | None = None

    def boot(self, now: float) -> None:
        self.results.look()
        self.passing.spread(now)

    def begin(self, now: float, *, again: bool = False, anyway: bool = False) -> Relay:
        """Relay a release; see `Relay`."""
        if self.relay is not None and not self.relay.done:
            raise RunError("this server is relaying a release already; wait for its end")
        self.relay = Relay(self.context, self.results, again, anyway)
        self.relay.start(now)
        self._hear_own(now)
        return self.relay

    def receive(self, now: float, sender: int, raw: bytes) -> None:
        """Bytes of a release from a server, whom the network authenticated."""
        self._take(now, sender, raw)
        self._hear_own(now)

    def tick(self, now: float) -> None:
        self.passing.tick(now)
        if self.relay is not None:
            self.relay.tick(now)
            self._hear_own(now)

    @property
    def wake(self) -> float:
        return min(self.passing.wake, NEVER if self.relay is None else self.relay.wake)

    def _take(self, now: float, sender: int, raw: bytes) -> None:
        c = self.context
        try:
            message = messages.decode(raw, self._largest)
        except MalformedError:
            c.refuse(Reason.MALFORMED)
            return
        if message.plan != self.desk.rules.plan:
            c.refuse(Reason.PLAN)
        elif message.sender != sender or message.receiver != self.desk.rules.me or sender >= c.part.terms.servers:
            c.refuse(Reason.NAMES)
        elif isinstance(message, FromNeighbour):
            self.passing.receive(now, message, raw)
        elif isinstance(message, FromRelay):
            self.releaser.receive(now, message)
        elif self.relay is not None:
            self.relay.receive(now, message)

    @cached_property
    def _largest(self) -> int:
        return Circle.of(self.desk.rules, self.context.part.terms, None).largest_message

    def _send(self, to: int, raw: bytes) -> None:
        if to == self.desk.rules.me:
            self._own.append(raw)
        else:
            self.desk.ports.to_server(to, raw)

    def _hear_own(self, now: float) -> None:
        """What this server's relay says to the server itself, and what that answers; then whoever lacks receipts."""
        while self._own:
            self._take(now, self.desk.rules.me, self._own.popleft())
        self.passing.spread(now)
