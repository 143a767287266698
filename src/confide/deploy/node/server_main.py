"""A unit's server as a process: `confide server`, `confide.deploy.Server`, and what `confide cluster` starts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from confide.deploy.node.config import load_server


@dataclass
class Server:
    """A unit's server, as `confide server` runs it.

        Server("server/server.toml").run()

    Args:
        path: its TOML, see docs/deploying.md.
        rejoin: its store was lost or restored: it asks the neighbours where it was, and pays for the gap.
        until_finished: it ends after the last round instead of answering on.
        json: the log is JSON lines, whatever the TOML says.
        test_seed: FOR TESTS: all noise from this seed. Nothing is private then.

    Raises:
        InputError: the TOML is refused.
    """

    path: str | Path
    _: KW_ONLY
    rejoin: bool = False
    until_finished: bool = False
    json: bool = False
    test_seed: int | None = None

    def __post_init__(self) -> None:
        found = load_server(self.path)
        self.config = found.model_copy(update={"log": "json"}) if self.json else found

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Takes over the process (its log, its signals), and needs its main thread.

        Raises:
            InputError: plan, keys, budget or store are refused; nothing was sent.
            RunError: it had to stop; the store is whole, and the next start goes on from it.
        """
        from confide.deploy.node.server_process import serve

        serve(self.config, self.rejoin, self.test_seed, self.until_finished)
