"""What a process that runs for long does when it is told to end, from its first line of Python to its last.

    starting   it has sent nothing, and what it has on the disk outlives a kill: it ends at once, with 0
    heard      whoever runs it decides
    ended      it ends already, and with which code is decided: another signal changes nothing

Between two of these a signal must never find Python's defaults, which end the process by the signal (-15).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

TOLD: Final = (signal.SIGTERM, signal.SIGINT)
HELD: Final = (*TOLD, signal.SIGHUP)
_own = False


def starting() -> None:
    """This process is a node's, and nobody else's: called before anything is imported that takes its time."""
    global _own
    _own = True
    for number in TOLD:
        signal.signal(number, end_at_once)
    signal.signal(signal.SIGHUP, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def hold() -> None:
    """Signals wait; `starting` lets them go, in the program that takes this one's place."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def end_at_once(*_: object) -> None:
    os._exit(0)


@contextmanager
def heard(told: Callable[[], None], look: Callable[[], None]) -> Iterator[None]:
    """Inside, `told` is called for SIGTERM and SIGINT, `look` for SIGHUP, between any two lines of the main thread."""
    with handled(dict.fromkeys(TOLD, told) | {signal.SIGHUP: look}):
        yield


@contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Inside, these are called for their signals; afterwards what was before holds again."""
    before = {number: signal.signal(number, _calling(handler)) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if _own else handler)


@contextmanager
def interrupted() -> Iterator[None]:
    """Inside, to be told to end or to lose the terminal is a Ctrl-C: a command can put things in order."""
    with handled(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), _interrupt)):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt


def _calling(handler: Callable[[], None]) -> Callable[..., None]:
    return lambda *_: handler()


def _nothing(*_: object) -> None:
    """Not `SIG_IGN`, which a program that is started from here would have, too."""
