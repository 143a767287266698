"""A node without the command line's libraries: `python -m confide.deploy.node.start server|client CONFIG [OPTION ...]`.

It can be told to end from its first line on.
"""

from __future__ import annotations

import sys

from confide import deploy
from confide.base import signals
from confide.base.descriptors import open_standard
from confide.base.exits import exit_code


def main(arguments: list[str]) -> int:
    """The exit code."""
    signals.starting()
    open_standard()
    return run(*arguments)


def run(kind: str, path: str, *options: str) -> int:
    """CONFIG [--rejoin] [--until-finished] [--test-seed N] [--json], as the command has checked them: the exit code."""
    seed = int(options[options.index("--test-seed") + 1]) if "--test-seed" in options else None
    given = {name: True for name in ("rejoin", "until_finished", "json") if f"--{name.replace('_', '-')}" in options}
    node = getattr(deploy, kind.capitalize())  # neither loads the other's libraries
    return exit_code(lambda: node(path, test_seed=seed, **given).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
