"""How the process of a node lives and ends, a server's and a client's alike.

One thread has the machine (`worker`), an event loop has the network. A signal, a failure on either of them or the last
round ends the loop, once; whatever the reason, the node's files are closed after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from confide.base import signals
from confide.base.errors import BusyError, InputError, RunError
from confide.deploy.node.config import NodeTable
from confide.deploy.node.descriptors import raise_limit
from confide.deploy.node.liveness import Liveness
from confide.deploy.node.memory import keep_buffers
from confide.deploy.node.observing import Observer
from confide.deploy.node.worker import Clock

JUMP: Final = 5.0  # seconds by which the clock may be set before it is worth a word
BUSY: Final = 5.0  # seconds that a predecessor takes to end, beside its grace
AGAIN: Final = 0.25  # seconds until it is tried again
T = TypeVar("T")


class NodeProcess:
    """A server or a client: it says how to begin (`_start`), how to end (`_stop`) and what to close (`_close`)."""

    kind = "node"

    def __init__(self, observer: Observer | None, until_finished: bool, config: NodeTable) -> None:
        self._observer, self._until_finished, self._health = observer or Observer(), until_finished, config.health
        self._clock, self._jumped = Clock(), 0.0
        self._patience = time.monotonic() + config.grace + BUSY
        self._begun = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Until it is told to end; raises `RunError` if it had to, `InputError` only where it could not begin."""
        with signals.heard(self._hear, lambda: self._on_loop(self._look.set)):
            try:
                asyncio.run(self._main())
            finally:
                self._close()
        if isinstance(self._failure, RunError):
            raise self._failure
        if isinstance(self._failure, InputError):  # what was right when it began is not the config's fault
            raise RunError(str(self._failure)) from self._failure
        if self._failure is not None:
            raise RunError(f"the {self.kind} failed: {type(self._failure).__name__}, see the log") from self._failure

    async def _main(self) -> None:
        self._loop, self._look = asyncio.get_running_loop(), asyncio.Event()
        self._ended = self._loop.create_future()
        health, alive = self._health, None
        if health is not None:
            alive = await self._patiently_on_loop(lambda: Liveness.serve(health))
        await self._start()
        self._begun = True
        try:
            self._failure = await self._ended
        finally:
            await self._stop()
            if alive is not None:
                alive.close()

    def _hear(self) -> None:
        if not self._begun:  # it has sent nothing
            signals.end_at_once()
        self._on_loop(self._signalled)

    def _patiently(self, what: Callable[[], T]) -> T:
        """Again and again while somebody else has it, as long as a predecessor with this config may take to end."""
        while True:
            try:
                return what()
            except BusyError as e:
                self._wait_for(e)
            time.sleep(AGAIN)

    async def _patiently_on_loop(self, what: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await what()
            except BusyError as e:
                self._wait_for(e)
            await asyncio.sleep(AGAIN)

    def _wait_for(self, busy: BusyError) -> None:
        if time.monotonic() > self._patience:
            raise busy
        self._observer.log("busy", why=str(busy))

    async def _pause(self, seconds: float) -> None:
        """Until SIGHUP, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._look.wait(), seconds)
        self._look.clear()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _signalled(self) -> None:
        raise NotImplementedError

    def _on_loop(self, what: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and this process with it
            self._loop.call_soon_threadsafe(what, *arguments)

    def _broke(self, error: BaseException) -> None:
        self._on_loop(self._end, error)

    def _end(self, failure: BaseException | None) -> None:
        if not self._ended.done():
            if failure is not None:
                self._observer.log("failed", why=str(failure), kind=type(failure).__name__)
            self._ended.set_result(failure)

    def _look_at_clock(self) -> None:
        if abs(self._clock.jumped - self._jumped) > JUMP:
            self._jumped = self._clock.jumped
            self._observer.log("clock", set_by_seconds=round(self._jumped, 1), effect="none until the next start")


@contextmanager
def begin(config: NodeTable, test_seed: int | None) -> Iterator[Observer]:
    """Inside, this process is the node's: its memory, its descriptors, and its log."""
    keep_buffers()
    raise_limit()
    observer = Observer()
    observer.start(config.log, config.path(config.node).name)
    try:
        if test_seed is not None:
            from confide.deploy.node import seeded

            observer.log("test seed", warning=seeded.WARNING)
        yield observer
    finally:
        observer.stop()
