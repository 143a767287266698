"""A node without the command line's libraries: `python -m confide.deploy.node.start server|client CONFIG [OPTION ...]`.

It can be told to end from its first line on.
"""

from __future__ import annotations

import sys

from confide.base import signals
from confide.base.descriptors import open_standard


def main(arguments: list[str]) -> int:
    """The exit code."""
    signals.starting()
    open_standard()
    kind, *rest = arguments
    if kind == "client":
        from confide.deploy.node import client_main

        return client_main.main(rest)
    from confide.deploy.node import server_main

    return server_main.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
