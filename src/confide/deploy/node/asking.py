"""What an operator asks of a server: of the running one by its socket, else, where that can answer, of its store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from confide.base.errors import BusyError, RunError
from confide.deploy.node import control
from confide.deploy.node.config import ServerConfig, load_server

STARTING: Final = 10.0  # seconds in which a server that starts has its store, and no socket yet
PATIENCE: Final = 60.0  # seconds for an answer
NOT_RUNNING: Final = "no server runs with this config; start it with `confide server` and ask again"


def status(path: str | Path) -> dict[str, Any]:
    """Where a server stands: round, peers, clients, open flows, epsilon so far, the last error.

    Args:
        path: the server's TOML.

    Returns:
        What `confide status --json` prints; `running` says whether the server answered, or its store.

    Raises:
        InputError: the TOML or the store is refused, or there is no store yet.
        RunError: the server did not answer.
    """
    config, begun = load_server(path), time.monotonic()
    while True:
        try:
            return last(control.ask(config.control, {"ask": "status"}, PATIENCE))
        except control.NotRunningError:
            try:
                return _stored(config)
            except BusyError:
                if time.monotonic() - begun > STARTING:
                    raise
        time.sleep(0.2)


def release(
    path: str | Path,
    *,
    again: bool = False,
    anyway: bool = False,
    told: Callable[[str, int], None] = lambda stage, attempt: None,
) -> dict[str, Any]:
    """Reveal the mean of all servers' models, with noise: the running server asks the others for it.

    Args:
        path: the TOML of any server of the plan.
        again: a further one, if the plan allows more, with fresh noise.
        anyway: also where no server has published a round, so that noise alone is released, and paid for.
        told: called with the stage and the number of the attempt (0 before the first) while it goes on.

    Returns:
        What `confide release --json` prints: `file`, `attempt`, `servers`, `sigma`, `unheard` and more.

    Raises:
        InputError: the TOML is refused.
        RunError: no server runs there, the plan has no release (left), or the others did not answer.
        KeyboardInterrupt: the server goes on; `stop_release` asks it to stop.
    """
    config = load_server(path)
    line: dict[str, Any] = {}
    try:
        question = {"ask": "release", "again": again, "anyway": anyway}
        for line in control.ask(config.control, question, 3.0 * config.patience + PATIENCE):
            if "stage" in line:
                told(line["stage"], line["attempt"])
    except control.NotRunningError:
        raise RunError(f"{config.control}: {NOT_RUNNING}") from None
    return last([line])


def stop_release(path: str | Path) -> dict[str, Any]:
    """Ask a server to stop the release that it relays, as long as nothing was begun.

    Returns:
        `stopped`; where it goes on, `stage` and `attempt` as well.
    """
    config = load_server(path)
    try:
        return last(control.ask(config.control, {"ask": "stop release"}, PATIENCE))
    except control.NotRunningError:
        return {"stopped": True}


def export_ledger(path: str | Path, out: Path) -> list[dict[str, Any]]:
    """Write a server's ledger to a new file.

    Args:
        path: the server's TOML.
        out: where to; it must not exist.

    Returns:
        The receipts of releases: who was told which result, as both signed it.
    """
    config = load_server(path)
    try:
        done = last(control.ask(config.control, {"ask": "ledger", "path": str(out.absolute())}, PATIENCE))
        return list(done["receipts"])
    except control.NotRunningError:
        from confide.deploy.node.server_status import receipts_of
        from confide.deploy.store.sqlite import SqliteStore

        # Of whatever plan: the ledger is exported of one of an earlier protocol too.
        with SqliteStore.open(config.path(config.store), look=True) as store:
            store.export_ledger(out)
            return receipts_of(store.load())


def remove(path: str | Path, signatures: Sequence[Path]) -> dict[str, Any]:
    """Carry out the removal of servers that more than half of all servers have signed.

    Args:
        path: the TOML of any server of the plan that is not removed.
        signatures: files that `confide remove --sign` made.
    """
    from confide.deploy.node import removal
    from confide.deploy.node.server_setup import ServerSetup

    config = load_server(path)
    epoch = removal.collect(ServerSetup.load(config), signatures)
    try:
        return last(control.ask(config.control, {"ask": "remove", "epoch": epoch.hex()}, PATIENCE))
    except control.NotRunningError:
        raise RunError(f"{config.control}: no server runs with this config; start it and ask again") from None


def _stored(config: ServerConfig) -> dict[str, Any]:
    from confide.deploy.node.server_process import open_store
    from confide.deploy.node.server_setup import ServerSetup
    from confide.deploy.node.server_status import books_status
    from confide.privacy.spent import status_of

    setup = ServerSetup.load(config)
    with open_store(setup, create=False) as store:
        found = books_status(setup, store.load())
    return found | status_of(setup.price, found["published"], found["releases"], setup.allowance.spent)


def last(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What was found, by the last line of an answer; a `RunError` where it says that there is nothing."""
    found: dict[str, Any] = {}
    for line in lines:
        found = line
    if "done" not in found:
        raise RunError(str(found.get("failed", "the server ended before it answered")))
    done: dict[str, Any] = found["done"]
    return done
