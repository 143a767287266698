"""A client's own train function, in a process of its own.

What that process does to itself (a crash, a leak, a lock that is never released) it does not do to the client. A
training that does not end in time, or a process that ends in the middle of one, is a `RunError`, and another process is
started for the next round. `training_main` is what runs in it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from confide.base.closing import Closing
from confide.base.errors import DataError, InputError, RunError
from confide.base.wire import MalformedError
from confide.deploy.node.config import ClientConfig
from confide.deploy.node.observe import ElsewhereError
from confide.deploy.node.training_pipe import (
    ANSWERS,
    Failed,
    Pipe,
    Prepare,
    Ready,
    Refused,
    Train,
    Warned,
    common,
    packed,
)

if TYPE_CHECKING:
    from confide.base.arrays import Floats
    from confide.deploy.node.network_training import Job

LOADING: Final = 600.0  # seconds in which a function must be loaded, with the libraries that it needs
ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # for several on one machine
LAST: Final = 1.0  # seconds from the last word of a process to its end
_log = logging.getLogger(__name__)


class Closed(BaseException):
    """The client ends while it trains. No error of the training: nothing is said in its place."""


class TrainingProcess(Closing):
    """Args:
    name: "module:function", or "module:network".
    folder: where the module is looked for, after everything that is installed.
    output: the file for what the function writes; nowhere if there is none.
    environment: of the process; that of now if it is not given.
    kind: "train", or "model" of a network, which must be told its `job` before it trains.

    Attributes:
        timeout: seconds that a training may take.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        kind: Literal["train", "model"] = "train",
    ) -> None:
        self.timeout = LOADING
        self._name, self._folder, self._output, self._kind = name, folder, output, kind
        self._job: Job | None = None
        # Of now: what the client sets for itself later is not meant for it.
        self._environment = dict(os.environ if environment is None else environment)
        self._busy, self._guard, self._closed = threading.Lock(), threading.Lock(), False
        self._start()

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """The one that this config asks for."""
        packed(config.train_config)  # if it cannot be told, that is said now
        output = None if config.train_log is None else config.path(config.train_log)
        if config.model is not None:
            return cls(config.model, config.folder, output, kind="model")
        assert config.train is not None  # noqa: S101 - only called for one of the two
        return cls(config.train, config.folder, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, job: Job | None = None) -> tuple[int, int]:
        """Wait until the function is loaded, or the network and its data.

        Args:
            job: of a network.

        Returns:
            How many rows of its data count as nothing, and of how many.

        Raises:
            InputError: there is no such function, or loading it took too long; a `DataError` if loading it failed.
        """
        with self._busy:
            self._job = job or self._job
            try:
                return self._loaded(self._began + LOADING)
            except TimeoutError:
                remedy = f"was not loaded in {LOADING:g} s; see what it imports"
                raise InputError(self._kind, self._name, remedy) from None
            except (EOFError, OSError, MalformedError):
                raise DataError(self._kind, self._name, f"the process that loads it {self._ended()}") from None

    def __call__(self, weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        """The update as the function returned it.

        Raises:
            RunError: there is none, and why.
        """
        import numpy as np  # not before the process has started

        deadline = time.monotonic() + self.timeout
        question, numbers = Train(round, packed(config)), np.ascontiguousarray(weights, "<f8")
        with self._busy:
            try:
                self._loaded(deadline)
                self._pipe.say(question, numbers.data, deadline)
                answer, update = self._heard(deadline, numbers.nbytes)
            except TimeoutError:
                if self._ready or time.monotonic() > self._began + LOADING:
                    self._anew()
                    raise RunError(f"{self._name} did not end in {self.timeout:g} s and was killed") from None
                raise RunError(f"{self._name} is still being loaded") from None
            except (EOFError, OSError, MalformedError) as e:
                why = f"said what is no answer ({e})" if isinstance(e, MalformedError) else self._ended()
                self._anew()
                raise RunError(f"the process of {self._name} {why}") from None
            except InputError as e:  # as it was loaded again
                self._anew()
                raise RunError(str(e)) from None
        if isinstance(answer, Failed):
            raise ElsewhereError(answer.why, answer.places)
        if len(update) != numbers.nbytes:
            raise RunError(f"the process of {self._name} said {len(update)} bytes; an update has {numbers.nbytes}")
        return np.frombuffer(update, "<f8").astype(np.float64, copy=False)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._kill()
        with self._busy:  # whoever waits for an answer has noticed
            self._pipe.close()

    def _start(self) -> None:
        with self._guard:
            if self._closed:
                raise Closed
            ours, theirs = socket.socketpair()
            pipe, passed = Pipe(ours, memory := common()), (theirs.fileno(), memory)
            line = [sys.executable, "-P", "-m", "confide.deploy.node.training_main", *map(str, passed)]
            try:
                with _opened(self._output) as output:
                    self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                        [*line, self._kind, self._name, str(self._folder)],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env=self._environment,
                        pass_fds=passed,
                        process_group=0,  # a Ctrl-C is for the client, and who is forked there can be ended with it
                    )
            except BaseException:
                pipe.close()
                raise
            finally:
                theirs.close()
            self._pipe, self._began = pipe, time.monotonic()
            self._ready, self._told, self._rows = False, False, (0, 0)

    def _loaded(self, deadline: float) -> tuple[int, int]:
        """Loaded, and told its job if it has one: it hears that once the network is there."""
        while not self._ready:
            match self._heard(deadline)[0]:
                case Refused(field, value, remedy, of_data):
                    raise (DataError if of_data else InputError)(field, value, remedy)
                case Ready(bad, rows):
                    self._rows = bad, rows
                    self._ready = self._told or self._kind == "train"
                    if not self._ready and self._job is not None:
                        self._pipe.say(Prepare(packed(self._job._asdict())), deadline=deadline)
                        self._told = True
                case other:
                    raise MalformedError(f"a {type(other).__name__} before a question")
        return self._rows

    def _heard(self, deadline: float, largest: int = 0) -> tuple[Any, bytearray]:
        """The next answer and its numbers; warnings before it are told."""
        while True:
            answer, numbers = self._pipe.hear(ANSWERS, largest, deadline)
            if not isinstance(answer, Warned):
                return answer, numbers
            _log.warning("the training warned: %s at %s", answer.kind, answer.at)

    def _ended(self) -> str:
        """Of what the process ended, which it has, or will now."""
        limit = time.monotonic() + LAST
        with suppress(ChildProcessError):  # the end of the client was quicker
            while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > limit:
                    break
                time.sleep(0.01)
        self._kill()
        code = self._process.returncode
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended by itself, with {code}"

    def _kill(self) -> None:
        """With all that it has started, and that stayed in its group."""
        if self._process.returncode is None:  # its number is still its own, and its group's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _anew(self) -> None:
        self._kill()
        self._pipe.close()
        self._start()


def _opened(output: Path | None) -> Any:
    """To append to, for its owner alone."""
    if output is None:
        return open(os.devnull, "wb")
    try:
        return open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb")
    except (OSError, ValueError) as e:
        said = e.strerror if isinstance(e, OSError) else e
        raise InputError("train_log", str(output), f"cannot be written ({said}); name another") from None
