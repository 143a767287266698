"""How the process of a node lives and ends, a server's and a client's alike.

One thread has the machine (`worker`), an event loop has the network. A signal, a failure on either of them or the last
round ends the loop, once; whatever the reason, the node's files are closed after it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confide.base.errors import InputError, RunError
from confide.deploy.node.config import NodeTable
from confide.deploy.node.liveness import Liveness
from confide.deploy.node.memory import keep_buffers
from confide.deploy.node.observing import Observer
from confide.deploy.node.worker import Clock

JUMP: Final = 5.0  # seconds by which the clock may be set before it is worth a word


class NodeProcess:
    """A server or a client: it says how to begin (`_start`), how to end (`_stop`) and what to close (`_close`)."""

    kind = "node"

    def __init__(self, observer: Observer | None, until_finished: bool, health: str | None) -> None:
        self._observer, self._until_finished, self._health = observer or Observer(), until_finished, health
        self._clock, self._jumped = Clock(), 0.0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Until it is told to end; raises `RunError` or `InputError` if it had to."""
        try:
            asyncio.run(self._main())
        finally:
            self._close()
        if isinstance(self._failure, RunError | InputError):
            raise self._failure
        if self._failure is not None:
            raise RunError(f"the {self.kind} failed: {type(self._failure).__name__}, see the log") from self._failure

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        for sign in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(sign, self._signalled)
        alive = None if self._health is None else await Liveness.serve(self._health)
        await self._start()
        try:
            self._failure = await self._ended
        finally:
            await self._stop()
            if alive is not None:
                alive.close()

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


def begin(config: NodeTable, test_seed: int | None) -> Observer:
    """This process is the node's from here on: its memory, and its log."""
    keep_buffers()
    observer = Observer()
    observer.start(config.log, config.path(config.node).name)
    if test_seed is not None:
        from confide.deploy.node import seeded

        observer.log("test seed", warning=seeded.WARNING)
    return observer
