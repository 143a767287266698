"""The process that trains for a client: it loads the owner's function, and answers one question after the other.

It is the owner's as far as it can be: one thread, Python's own signal handlers, a group of its own, nothing on its
standard input, and no library of the network in it. So the function may fork, start a pool or hold a GPU. It ends with
its client, whatever that died of.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import DataError, InputError, RunError
from confide.deploy.machines import own_training
from confide.deploy.node.memory import keep_buffers
from confide.deploy.node.observe import trace
from confide.deploy.node.training_pipe import (
    LARGEST,
    QUESTIONS,
    Failed,
    Pipe,
    Prepare,
    Ready,
    Refused,
    Train,
    Update,
    Warned,
    line,
    unpacked,
)
from confide.deploy.node.warned import tell_warnings

if TYPE_CHECKING:
    from confide.deploy.machines.training import Trainer
    from confide.deploy.node.network_training import Trained
    from confide.problems.networks.network import Network

END_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
KILLED_FIRST: Final = "500"  # of 1000: when memory runs out, this process goes before its client


def main(arguments: list[str]) -> int:
    """FD MEMORY train|model module:name FOLDER: this end of the pair of sockets and the memory of both, as descriptors,
    what is named, and where modules are looked for last."""
    fd, memory, kind, name, folder = arguments
    _depend_on_the_client()
    keep_buffers()  # weights and update come and go in every round
    for each in (fd, memory):
        os.set_inheritable(int(each), False)
    pipe = Pipe(socket.socket(fileno=int(fd)), int(memory))
    os.register_at_fork(after_in_child=pipe.close)  # whoever is forked here has no business with the client
    tell_warnings(lambda kind, at: _say_if_open(pipe, Warned(line(kind), line(at))))
    sys.path.append(folder)
    train: Trainer | None = None
    try:
        if kind == "train":
            train = own_training.called(name)
        else:
            network = _network(name)
    except InputError as e:
        pipe.say(_refused(e))
        return 0
    pipe.say(Ready())
    while True:
        try:
            question, weights = pipe.hear(QUESTIONS, LARGEST)
        except EOFError:
            return 0
        if isinstance(question, Prepare):
            try:
                train = found = _trained(name, network, question)
            except InputError as e:
                pipe.say(_refused(e))
                return 0
            except Exception as e:  # it has looked at the data: its words may hold values, and are for the owner's file
                traceback.print_exception(e)
                pipe.say(_refused(DataError("model", name, f"raised {type(e).__name__} on its data; see train_log")))
                return 0
            pipe.say(Ready(found.bad, found.rows))
        elif train is not None:
            pipe.say(*_answer(name, train, question, np.frombuffer(weights, "<f8")))


def _network(name: str) -> Network:
    from confide.problems.networks.named import from_entry_point

    return from_entry_point(name, field="model", beside="the client's TOML")


def _trained(name: str, network: Network, question: Prepare) -> Trained:
    from confide.deploy.node.network_training import Job, Trained

    return Trained(name, network, Job(**unpacked(question.job)))


def _refused(e: InputError) -> Refused:
    return Refused(line(e.field), line(str(e.value)), line(e.remedy), isinstance(e, DataError))


def _answer(name: str, train: Trainer, question: Train, weights: Floats) -> tuple[Update | Failed, memoryview | bytes]:
    """With the numbers of an update; the weights are the function's to change."""
    try:
        update = train(weights, question.round, unpacked(question.config))
    except RunError as e:
        return _failed(str(e), e.__cause__), b""
    except BaseException as e:  # Ctrl-C of a library's own, for one
        return _failed(f"{name} raised {type(e).__name__} in round {question.round}", e), b""
    return Update(), np.ascontiguousarray(update, "<f8").data


def _failed(why: str, error: BaseException | None) -> Failed:
    """The words of the function's own error are for the owner's file alone."""
    if error is not None:
        with suppress(Exception):  # of a standard error that the function has closed
            traceback.print_exception(error)
            sys.stderr.flush()
    return Failed(line(why), tuple(map(line, trace(error))))


def _say_if_open(pipe: Pipe, message: object) -> None:
    with suppress(OSError):  # in a child of this process it is not
        pipe.say(message)


def _depend_on_the_client() -> None:
    """Signals that whoever started the client had it ignore are not ignored here."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(sign, signal.SIG_DFL)
    with suppress(OSError, AttributeError, TypeError):  # a client that is gone already is noticed by its silence
        ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(KILLED_FIRST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
