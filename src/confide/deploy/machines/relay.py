"""The server that relays a release: it asks, collects, passes on and tells.

    ask -> sum -> tell -> done          ask, sum -> failed(why)

What a relay may learn, and why it may begin again at any time, is in `release`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np

from confide.base.wire import MalformedError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.release import Context, Reason, Released, all_made, not_ready, says
from confide.deploy.machines.release_messages import FromServer, Message
from confide.deploy.machines.results import Results
from confide.deploy.store.books import Vector, as_bytes
from confide.secure import messages as secure_messages
from confide.secure import server as secure_server
from confide.secure.session import RefusedError

NEVER: Final = math.inf
REPEATS: Final = 64  # the first repetition comes after this part of the patience, the others ever later


class Stage(StrEnum):
    ASK = "ask"  # until everybody is ready
    SUM = "sum"
    TELL = "tell"  # until everybody has the result
    DONE = "done"  # with a result, or failed


class Relay:
    """One release, from the question whether everybody is ready to the result: `result`, or why not: `failed`.

    All of it is volatile. After a crash another relay, here or elsewhere, takes up the same attempt.
    """

    def __init__(self, context: Context, results: Results, again: bool = False, anyway: bool = False) -> None:
        """Args:
        again: a release that is complete is not repeated but followed by another, with fresh noise.
        anyway: also where nobody has published anything, so that noise alone is released, and paid for.
        """
        self.context, self.desk, self.results = context, context.desk, results
        self.circle, self.again, self.anyway = context.circle(), again, anyway
        self.result: Released | None = None
        self.failed = ""
        self.stage = Stage.ASK
        self.attempt = 0
        self.unheard: tuple[int, ...] = ()  # done, and they have not said that they got the result
        self._run = b""
        self._ready: dict[int, str] = {}  # by server: why not yet
        self._attempts: dict[int, messages.Ready] = {}  # by server: what it says of its last attempt
        self._obstacles: dict[int, str] = {}
        self._state: secure_server.State | None = None
        self._said: dict[int, bytes] = {}  # the last word to each
        self._got: set[int] = set()
        self._deadline = self._repeat_at = self._anew_at = NEVER
        self._gap = 0.0

    @property
    def done(self) -> bool:
        return self.stage is Stage.DONE

    @property
    def kept(self) -> bool:
        """The result is what this server has, also after a restart."""
        known = self.results.released.get(self.attempt)
        return self.result is not None and known is not None and known.sha256 == self.result.sha256

    @property
    def wake(self) -> float:
        return NEVER if self.done else min(self._deadline, self._repeat_at, self._anew_at)

    def start(self, now: float) -> None:
        self._deadline, self._run = now + self.context.part.patience, self._new_run()
        self._said = {p: self._encoded(messages.AskReady, p) for p in self.circle.members}
        self._send_all(now)

    def receive(self, now: float, message: FromServer) -> None:
        """A message of this plan and for this server, from the server that it names."""
        if self.done or self._is_over():
            return
        if message.sender not in self.circle.members or message.run != self._run:
            self.context.refuse(Reason.RUN)
            return
        match message:
            case messages.Ready() if self.stage is Stage.ASK:
                self._on_ready(now, message)
            case messages.Said() if self.stage is Stage.SUM and self._state is not None:
                self._on_said(now, message, self._state)
            case messages.Refusal() if self.stage is Stage.SUM:
                self._on_refusal(now, message)
            case messages.Got() if self.stage is Stage.TELL and message.attempt == self.attempt:
                self._got.add(message.sender)
                if self._got >= set(self.circle.members):
                    self.stage = Stage.DONE

    def tick(self, now: float) -> None:
        if self.done or self._is_over():
            return
        if now >= self._deadline:
            self._give_up()
        elif now >= self._anew_at:
            self._begin(now)
        elif now >= self._repeat_at:
            for p in self._missing():
                self.context.send(p, self._said[p])
            self._gap = min(2.0 * self._gap, self.context.part.patience / 4.0)
            self._repeat_at = now + self._gap

    def _is_over(self) -> bool:
        if self.desk.epoch_number == self.circle.epoch or self.result is not None:
            return False
        self._fail("a server was removed meanwhile: release again, over those that remain")
        return True

    def stop(self) -> bool:
        """Its operator wants no release any more: whether it ended. What was begun may be paid for, and goes on."""
        if self.stage is Stage.ASK:
            self._fail("its operator stopped it; nothing was begun, and nothing is paid for")
        return self.done

    # Is everybody ready?

    def _on_ready(self, now: float, ready: messages.Ready) -> None:
        p, who, rounds = ready.sender, self.desk.terms.who, self.circle.round
        if ready.epoch != self.circle.epoch:
            self._ready[p] = f"{who(p)} is at epoch {ready.epoch}, this one at {self.circle.epoch}"
            return
        if lie := self._lie(ready):
            self.desk.alarm(lie)
            self._fail(lie)
            return
        if ready.never:
            self._fail(says(who(p), ready.never))
            return
        flows = self._unknown(ready)
        rest = [flow for flow in ready.pending if flow not in flows]
        why = not_ready(who, p, ready.decided, rounds, ready.finished or bool(flows), rest)
        if flows:
            told = f"{who(p)} claims open flows with {who(self.desk.rules.me)}: rounds "
            why += "; " * bool(why) + told + ", ".join(str(i) for _, i in flows) + ", which are settled in its books"
        self._ready[p] = why
        self._attempts[p] = ready
        if not self._missing():
            self._choose(now)

    def _lie(self, ready: messages.Ready) -> str:
        """An attempt that nobody can have begun, since each is one that the plan allows or was cut off by a removal;
        or a flow with a server that the plan does not have.
        """
        planned, epoch, who = self.context.part.planned, ready.of_epoch, self.desk.terms.who(ready.sender)
        servers = len(self.desk.rules.identities)
        if stranger := next((m for m, _ in ready.pending if m >= servers), 0):
            return f"{who} claims open flows with server {stranger}, and the plan has 0 to {servers - 1}: it lies"
        if epoch <= ready.epoch and ready.attempt <= planned + epoch:
            return ""
        claim = f"{who} claims attempt {ready.attempt} of epoch {epoch}"
        return f"{claim}, and by epoch {ready.epoch} {planned} releases can lead to {planned + ready.epoch}: it lies"

    def _unknown(self, ready: messages.Ready) -> list[tuple[int, int]]:
        """What it claims to be open on its edge with this server, and is not open here.

        That may be so for a moment, until it hears that this end is settled. So it is waited for, but not believed.
        """
        own = self.desk.books.open.get(ready.sender, {})
        return [(m, i) for m, i in ready.pending if m == self.desk.rules.me and i and i not in own]

    def _choose(self, now: float) -> None:
        """The attempt that somebody has begun, unless other servers were in it; or another, if it is asked for.

        One that somebody may not join is not begun: it would end the one before.
        """
        told = self._attempts.values()
        top = max(ready.attempt for ready in told)
        begun = {ready.of_epoch for ready in told if ready.attempt == top}
        over = self.again and all(ready.attempt == top and ready.answered for ready in told)
        self.attempt = top + (top == 0 or begun != {self.circle.epoch} or over)
        poor = [ready.sender for ready in told if ready.attempt < self.attempt and not ready.left]
        if poor:
            self._fail("; ".join(all_made(self.desk.terms.who(p)) for p in sorted(poor)))
            return
        if self.attempt > top and not self.anyway and not any(ready.published for ready in told):
            self._fail("no server has published a round: it would release noise alone, and pay; ask with --anyway")
            return
        self.stage, self._deadline = Stage.SUM, now + self.context.part.patience
        self._begin(now)

    # The sum

    def _begin(self, now: float) -> None:
        """A session of the attempt, with fresh masks."""
        c = self.context
        self._run, self._anew_at = self._new_run(), NEVER
        self._obstacles.clear()
        self._state = secure_server.start(self.circle.task(self.attempt), self.circle.members, c.peers(self.circle))
        self._said = {p: self._encoded(messages.Invite, p, self.attempt) for p in self.circle.members}
        self.desk.ports.at("relay.begin")
        self._send_all(now)

    def _on_said(self, now: float, said: messages.Said, state: secure_server.State) -> None:
        try:
            word = secure_messages.from_client(said.word, state.task.largest_message)
            self._state = secure_server.receive(state, said.sender, word)
        except (MalformedError, RefusedError) as e:
            self.context.refuse(Reason.MALFORMED if isinstance(e, MalformedError) else Reason.WORD)
            return
        if secure_server.missing(self._state):
            return
        self._state, words = secure_server.close(self._state)
        if isinstance(self._state, secure_server.Aborted):
            who = "".join(f", of {self.desk.terms.who(liar)}" for liar in self._state.liars)
            self._fail(f"attempt {self.attempt}: {self._state.why}{who}")
        elif isinstance(self._state, secure_server.Summed):
            self._tell(now, self._state.total.view("<i8").astype(np.int64))
        else:
            encoded = {id(word): secure_messages.encode(word) for word in words.values()}
            self._said = {
                p: self._encoded(messages.Told, p, self.attempt, encoded[id(word)]) for p, word in words.items()
            }
            self.desk.ports.at(f"relay.{type(self._state).__name__.lower()}")
            self._send_all(now)

    def _on_refusal(self, now: float, refusal: messages.Refusal) -> None:
        why = says(self.desk.terms.who(refusal.sender), refusal.why)
        if not refusal.for_now:
            self._fail(why)
            return
        self._obstacles[refusal.sender] = why
        self._anew_at = min(self._anew_at, now + self.context.part.patience / REPEATS)

    # The result

    def _tell(self, now: float, total: Vector) -> None:
        self.desk.ports.at("relay.summed")
        signature, why = self.results.sign(self.attempt, total)
        if why:
            self._fail(why)
            return
        self.desk.ports.at("relay.signed")
        self.result = Released.of(self.circle.terms, self.attempt, total)
        self.stage, self._deadline, self._anew_at = Stage.TELL, now + self.context.part.patience, NEVER
        told = (self.attempt, as_bytes(total), signature)
        self._said = {p: self._encoded(messages.Result, p, *told) for p in self.circle.members}
        self._send_all(now)

    # Common to all stages

    def _missing(self) -> list[int]:
        """Who has not said what is awaited."""
        match self.stage:
            case Stage.ASK:
                return [p for p in self.circle.members if self._ready.get(p, "unheard")]
            case Stage.SUM if self._state is not None:
                return sorted(secure_server.missing(self._state))
        return [p for p in self.circle.members if p not in self._got]

    def _give_up(self) -> None:
        missing = self._missing()
        if self.stage is Stage.TELL:
            self.stage, self.unheard = Stage.DONE, tuple(missing)
            self.desk.ports.log("untold", servers=missing)
            return
        known: Mapping[int, str] = self._ready if self.stage is Stage.ASK else self._obstacles
        who = self.desk.terms.who
        why = [known.get(p) or f"{who(p)} does not answer" for p in sorted({*missing, *self._obstacles})]
        if self.stage is Stage.SUM:
            why.append(f"attempt {self.attempt} is paid for where it was answered: release again, and it is taken up")
        self._fail("; ".join(why))

    def _fail(self, why: str) -> None:
        self.stage, self.failed, self._state = Stage.DONE, why, None
        self.desk.ports.log("not released", why=why)

    def _new_run(self) -> bytes:
        return self.context.part.entropy(messages.RUN_BYTES)

    def _encoded(self, kind: Callable[..., Message], to: int, *rest: Any) -> bytes:
        return messages.encode(kind(self.desk.rules.plan, self.circle.epoch, self.desk.rules.me, to, self._run, *rest))

    def _send_all(self, now: float) -> None:
        self._gap = self.context.part.patience / REPEATS
        self._repeat_at = now + self._gap
        for n, (p, raw) in enumerate(self._said.items()):
            self.context.send(p, raw)
            if n == 0:
                self.desk.ports.at("relay.sent_first")
        self.desk.ports.at("relay.sent_all")
