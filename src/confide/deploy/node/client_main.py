"""A client as a process: what `confide client` becomes, which without typer and rich takes less memory."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confide.deploy.node.config import ClientConfig, load_client

if TYPE_CHECKING:
    from confide.deploy.node.training_process import TrainingProcess


@dataclass
class Client:
    """A client, as `confide client` runs it: it keeps its data, dials its server and answers.

        Client("c1/client.toml").run()

    Args:
        path: its TOML, see docs/deploying.md.
        until_finished: it ends after the last round instead of staying.
        json: the log is JSON lines, whatever the TOML says.
        test_seed: FOR TESTS: all noise and batches from this seed. Nothing is private then.

    Raises:
        InputError: the TOML is refused.
    """

    path: str | Path
    _: KW_ONLY
    until_finished: bool = False
    json: bool = False
    test_seed: int | None = None

    def __post_init__(self) -> None:
        found = load_client(self.path)
        self.config = found.model_copy(update={"log": "json"}) if self.json else found

    def run(self) -> None:
        """Take part until SIGTERM or SIGINT. Takes over the process (its log, its signals), and needs its main thread.

        Raises:
            InputError: plan, keys or train function are refused.
            RunError: it had to stop; its record is whole, and the next start goes on from it.
        """
        with own_process(self.config) as process:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded: this process needs no more
            from confide.deploy.node.client_process import serve

            serve(self.config, process, self.test_seed, self.until_finished)


def own_process(config: ClientConfig) -> AbstractContextManager[TrainingProcess | None]:
    """The process that trains, before anything of the network is in this one."""
    if config.train is None and config.model is None:
        return nullcontext()
    from confide.deploy.node.training_process import TrainingProcess

    return TrainingProcess.of(config)
