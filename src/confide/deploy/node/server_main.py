"""A unit's server as a process: `confide server`, `confide.deploy.Server`, and what `confide cluster` starts."""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from confide.base.exits import exit_code
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

        serve(self.config, rejoin=self.rejoin, test_seed=self.test_seed, until_finished=self.until_finished)


def main(arguments: list[str]) -> int:
    """CONFIG [--rejoin] [--until-finished] [--test-seed N] [--json], as `confide server` has them: the exit code."""
    path, *rest = arguments
    seed = int(rest[rest.index("--test-seed") + 1]) if "--test-seed" in rest else None
    given = {name: f"--{name.replace('_', '-')}" in rest for name in ("rejoin", "until_finished", "json")}
    return exit_code(lambda: Server(path, test_seed=seed, **given).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
