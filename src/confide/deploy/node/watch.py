"""A look at the files that say who is believed: the node's certificate and keys, and everybody's lists.

Each look checks every open stream again, whether or not a file has changed: certificates and lists end by themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from datetime import timedelta
from pathlib import Path
from typing import Final

from confide.base.descriptors import Reserve
from confide.base.errors import InputError, RunError
from confide.deploy.keys.certificates import SOON, utc_now
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.node.observing import Observer
from confide.deploy.node.trust import Trust
from confide.secure.keys import Secret

DAY: Final = 86400.0
STAYS: Final = "what held before stays in use"
LIST_SOON: Final = timedelta(days=7)


class Daily:
    """Says of a thing whether it is due: when it is new, and then once a day."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[Hashable, float] = {}

    def due(self, what: Hashable) -> bool:
        now = self._clock()
        if now - self._said.get(what, -math.inf) < DAY:
            return False
        self._said = {known: at for known, at in self._said.items() if now - at < DAY} | {what: now}
        return True


class Watch:
    """Args:
    prefix, passphrase: of the node's files, for `NodeKeys.load`.
    use: called at every look with what is in force now; it checks every open stream.
    """

    def __init__(
        self,
        node: NodeKeys,
        trust: Trust,
        prefix: Path,
        passphrase: Secret | None,
        observer: Observer,
        use: Callable[[NodeKeys, Trust], None],
    ) -> None:
        self._node, self._trust, self._prefix, self._passphrase = node, trust, prefix, passphrase
        self._observer, self._use = observer, use
        self._reserve, self._daily = Reserve(), Daily()
        self._failed: dict[str, str] = {}  # what the look before has told

    def look(self) -> None:
        before, failed = (self._node.certificate, self._trust.revoked), dict[str, str]()
        with self._reserve:
            for step in (self._look_at_lists, self._look_at_keys, self._trust.known.keep):
                try:
                    step()
                except (InputError, RunError, OSError) as e:
                    failed[str(e)] = STAYS
        for org, trouble in self._trust.troubles.items():
            failed[str(trouble)] = STAYS if org in self._trust.lists else f"the nodes of {org} are refused"
        self._use(self._node, self._trust)
        for why, effect in failed.items():
            if self._failed.get(why) != effect:
                self._observer.log("reload failed", why=why, effect=effect)
        self._failed = failed
        if (self._node.certificate, self._trust.revoked) != before:
            self._observer.log("reloaded", certificate_until=str(self._node.not_after))
        self._warn()

    def _look_at_lists(self) -> None:
        self._trust = self._trust.look()

    def _look_at_keys(self) -> None:
        found, node = NodeKeys.load(self._prefix, self._passphrase), self._node
        if (found.identity.public, found.org, found.role) != (node.identity.public, node.org, node.role):
            raise InputError("node", str(self._prefix), "is another node's certificate; renew the one of before")
        self._node = found

    def _warn(self) -> None:
        now, ends = utc_now(), {self._prefix.name: (self._node.not_after, SOON)}
        for org, held in self._trust.lists.items():
            ends[f"list of revoked certificates of {org}"] = held.until, LIST_SOON
        for what, (end, soon) in ends.items():
            if end - now < soon and self._daily.due((what, end)):
                self._observer.log("expires", certificate=what, on=str(end))
