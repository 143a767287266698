"""Where `confide` begins: a command that runs for long can be told to end before the others' libraries are loaded."""

from __future__ import annotations

import sys

from confide.base import signals
from confide.base.descriptors import open_standard

NODES = ("server", "client")


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] and sys.argv[1] in NODES and "--help" not in sys.argv:
        signals.starting()
    open_standard()
    from confide.commands.main import main as run

    run()
