"""For whom a round with the clients waits: who has a stream, and who was silent in earlier rounds.

Nothing here knows what a client said. So whom a round waits for says no more of the data than the dropouts of earlier
rounds, and how long a training took where that is seen: neither depends on data by assumption (docs/design/flows.md 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import inf as NEVER
from typing import Final

from confide.plans.plan import Clocks

SILENT: Final = 2  # rounds in a row without an answer in time, after which a client is not waited for
DIALING: Final = 0.5  # of the time that neighbours wait: so long clients may take to find a server that has started
TRAINING: Final = 0.6  # of the time of a round: so long clients may train, where phases of a secure sum follow
CLEAR: Final = 0.9  # and where none do


class Attendance:
    """Of the clients of one server, since its process began.

    Attributes:
        here: who has a stream.
        silent: in how many rounds in a row a client that was here did not answer in time.
        dialing: who never had a stream, and may still be on its way; until `until`.
    """

    def __init__(self, clients: int, clocks: Clocks) -> None:
        self.here: set[int] = set()
        self.silent: Counter[int] = Counter()
        self.dialing = set(range(clients))
        self.until = NEVER
        self._clients = range(clients)
        self._patience = min(DIALING * clocks.neighbours, TRAINING * clocks.adapt)
        self._spoke: set[int] = set()  # since it was last silent

    def connected(self, client: int) -> None:
        if client in self._clients:
            self.here.add(client)
            self.dialing.discard(client)

    def lost(self, client: int) -> None:
        self.here.discard(client)

    def spoke(self, client: int) -> None:
        """Whatever it said, and however late: it lives."""
        self.connected(client)
        self._spoke.add(client)

    def opened(self, now: float) -> None:
        """A round begins. From the first one on, clients that never came are waited for a while."""
        if self.until == NEVER and self.dialing:
            self.until = now + self._patience

    def tick(self, now: float) -> None:
        if now >= self.until:
            self.until = NEVER
            self.dialing.clear()

    def awaited(self, client: int) -> bool:
        """Whether a round waits for its answer; it is taken in any case.

        A client that was silent and has spoken since gets another chance, ever more seldom: after 2, 4, 8 ... rounds.
        """
        if client not in self.here:
            return client in self.dialing
        n = self.silent[client]
        return n < SILENT or (client in self._spoke and n & (n - 1) == 0)

    def settle(self, heard: Collection[int], late: Collection[int]) -> None:
        """A round is over, in which so many answered that it did not wait for the late in vain."""
        for client in heard:
            del self.silent[client]
        for client in self.here.intersection(late):
            self.silent[client] += 1
            self._spoke.discard(client)


def misfit(clocks: Clocks, *, secure: bool) -> str:
    """Why a client that is connected and silent costs its unit rounds; nothing where it does not."""
    share = TRAINING if secure else CLEAR
    longest = share * clocks.adapt + clocks.tick
    if clocks.tick >= clocks.adapt or longest <= clocks.neighbours:
        return ""
    return (
        f"a client that is connected and says nothing is waited for until {share:g} adapt, and the tick after that is "
        f"{longest:g} s after the round began at the latest; neighbours wait {clocks.neighbours:g} s, so its unit "
        f"would lose rounds; agree on exchange = {longest:g} or more, or on a shorter adapt"
    )
