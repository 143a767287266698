"""How a node's process ends, and what does not end it: signals at any moment, a log that nobody reads, what is in use.

A signal comes from inside the process, at a place that does not depend on how quick the machine is: a finder of modules
sends it when a library is about to be imported.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from confide.base.errors import BusyError, InputError, PassingError, RunError, refused
from confide.base.exits import ended_by
from confide.cluster.layout import Layout, lay_out
from confide.cluster.try_out import TRY_OUT
from confide.deploy.keys.authority import Authority
from confide.deploy.node import control
from confide.deploy.node.config import NodeTable, load_server
from confide.deploy.node.life import NodeProcess
from confide.deploy.node.memory import apart
from confide.deploy.node.server_process import open_store
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.store.record import FileRecord, Owner
from confide.deploy.store.sqlite_file import LostError
from confide.plans.config import parse
from full_pipe import fill
from patience import LIMIT, until
from ports import own_ports

SIGNALLED = """\
import atexit, os, signal, sys
def told(*_):
    os.kill(os.getpid(), signal.SIGTERM)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("TOLD_AT"):
            told()
sys.meta_path.insert(0, Finder())
if os.environ.get("TOLD_AT") == "execv":
    execv = os.execv
    os.execv = lambda *line: (told(), execv(*line))
if os.environ.get("TOLD_AT") == "its second start" and "confide.deploy.node.start" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGHUP)
if os.environ.get("TOLD_AT") == "exit":
    atexit.register(told)
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two servers with a client each, whose update is summed in clear."""
    config = parse(TRY_OUT | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    folder = tmp_path_factory.mktemp("endings") / "n"
    return lay_out(folder, config, 2, 1, ports=own_ports, log="json", grace=1.0, reload=3600.0)


@pytest.fixture
def told_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    (tmp_path / "sitecustomize.py").write_text(SIGNALLED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return monkeypatch


def start(kind: str, config: Path, before: str = ":", **options: Any) -> subprocess.Popen[bytes]:
    """`before`: what a shell does first; this process has gRPC's threads, and must do nothing between fork and exec."""
    line = [sys.executable, "-m", "confide", kind, str(config)]
    return subprocess.Popen(["bash", "-c", f'{before}; exec "$@"', "bash", *line], **options)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("server", "typer"),
        ("server", "confide.deploy.node.server_process"),
        ("client", "typer"),
        ("client", "execv"),
        ("client", "pydantic"),
        ("client", "grpc"),
    ],
)
def test_a_signal_while_libraries_are_loaded_ends_it_in_good_order(
    layout: Layout, told_at: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    told_at.setenv("TOLD_AT", place)
    node = "alpha" if kind == "server" else layout.clients("alpha")[0]
    process = start(kind, layout.toml(node), stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=LIMIT)
    assert (process.returncode, said) == (0, b"")


def test_a_hangup_while_a_client_takes_the_commands_place_does_not_end_it(
    layout: Layout, told_at: pytest.MonkeyPatch
) -> None:
    """Before the first line of its own; who starts services takes such an end for one in good order."""
    told_at.setenv("TOLD_AT", "its second start")
    process = start("client", layout.toml(layout.clients("alpha")[0]))
    try:
        until(lambda: process.poll() is not None or "record.lock" in str(opened(process.pid)), "it has its record")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def test_what_is_in_use_is_waited_for_a_hangup_is_a_look_and_a_second_signal_changes_nothing(
    layout: Layout, tmp_path: Path, told_at: pytest.MonkeyPatch
) -> None:
    told_at.setenv("TOLD_AT", "exit")  # the second one, after the last line of the node's own
    config = load_server(layout.toml("alpha"))
    log = tmp_path / "log"

    def events(name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line["fields"] for line in lines if line["event"] == name]

    with ExitStack() as held, open(log, "wb") as stderr:
        store = held.enter_context(open_store(ServerSetup.load(config)))
        port = held.enter_context(socket.create_server(("127.0.0.1", int(config.listen.rpartition(":")[2]))))
        line = [sys.executable, "-c", PATIENT, str(layout.toml("alpha"))]
        process = subprocess.Popen(line, stderr=stderr)
        held.callback(process.kill)
        until(lambda: any("store" in e["why"] for e in events("busy")), log.read_text)
        store.close()
        until(lambda: any("listen" in e["why"] for e in events("busy")), log.read_text)
        port.close()
        until(lambda: events("started"), log.read_text)
        Authority.open(layout.authority("alpha")).renew("one", keep=True)
        process.send_signal(signal.SIGHUP)
        until(lambda: events("reloaded"), log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, log.read_text()
        assert [e["whole"] for e in events("ended")] == [True]


PATIENT = f"""\
import sys
from confide.deploy.node import life, start
life.BUSY = {LIMIT}
sys.exit(start.main(["server", sys.argv[1]]))
"""


def answer(layout: Layout, process: subprocess.Popen[bytes]) -> Any:
    assert process.poll() is None
    with suppress(control.NotRunningError):
        return list(control.ask(layout.socket("beta"), {"ask": "status"}, LIMIT))[-1]["done"]


def test_a_log_that_nobody_reads_stops_nothing(layout: Layout) -> None:
    read, write = os.pipe()
    fill(write)
    process = start("server", layout.toml("beta"), stderr=write)
    try:
        os.close(write)

        assert until(lambda: answer(layout, process), "the server answers")["unit"] == "beta"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read)


def test_what_ends_it_is_not_said_to_nobody_for_ever(layout: Layout) -> None:
    """The last words of a process that could not begin; its exit code says it too."""
    read, write = os.pipe()
    fill(write)
    process = start("server", layout.folder / "missing.toml", stderr=write)
    try:
        assert process.wait(LIMIT) == 2
    finally:
        process.kill()
        process.wait()
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("where", ["nobody", "a full disk"])
def test_nor_does_it_end_otherwise_where_its_last_words_cannot_be_written(layout: Layout, where: str) -> None:
    """A service manager that is told 1 would start it again and again."""
    read, stderr = os.pipe()
    os.close(read)  # as that of a log daemon that is gone
    if where == "a full disk":
        os.close(stderr)
        stderr = os.open("/dev/full", os.O_WRONLY)
    try:
        for kind in ("server", "client"):
            assert start(kind, layout.folder / "missing.toml", stderr=stderr).wait(LIMIT) == 2
    finally:
        os.close(stderr)


@pytest.mark.parametrize("kind", ["server", "client"])
def test_what_is_printed_goes_into_no_file_where_standard_descriptors_are_closed(layout: Layout, kind: str) -> None:
    """Nor is the end of such a process another one."""
    name = "beta" if kind == "server" else layout.clients("beta")[0]
    process = start(kind, layout.toml(name), "exec 0<&- 1>&- 2>&-")
    try:
        if kind == "server":
            until(lambda: answer(layout, process), "it answers")
        else:  # its record is opened late
            until(lambda: process.poll() is not None or "record.lock" in str(opened(process.pid)), "it has its record")
        assert process.poll() is None
        assert [opened(process.pid)[fd] for fd in range(3)] == [os.devnull] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def opened(pid: int) -> dict[int, str]:
    found = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed again
            found[int(fd.name)] = os.readlink(fd)
    return found


def test_a_flood_of_strangers_takes_no_descriptor_and_no_line_of_the_log(layout: Layout, tmp_path: Path) -> None:
    """More connections than the process may have descriptors, half of them with what is no TLS."""
    limit, log = 256, tmp_path / "log"
    with ExitStack() as held, open(log, "wb") as stderr:
        process = start("server", layout.toml("beta"), f"ulimit -n {limit}", stderr=stderr)
        held.callback(process.wait)
        held.callback(process.kill)
        port = until(lambda: answer(layout, process), log.read_text)["port"]
        for n in range(2 * limit):
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):  # closed already
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" if n % 2 else b"")
            if not n % 32:
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < limit - 32
        assert until(lambda: answer(layout, process), "it answers")["unit"] == "beta"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    said = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert set(said) <= {"started", "no stream", "waiting", "stopping", "ended"}
    assert len(said) < 10


def test_too_few_descriptors_are_refused_before_anything_is_sent(layout: Layout) -> None:
    line = f"ulimit -n 120; exec {sys.executable} -m confide server {layout.toml('alpha')}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2, done.stderr
    assert "descriptors = 120" in done.stderr
    assert "LimitNOFILE" in done.stderr


def test_what_may_pass_is_no_input_error_of_a_child_either(capfd: pytest.CaptureFixture[str]) -> None:
    """A client pays in a child process; its ledger may be on a disk that fails."""
    for error, kind in ((OSError(errno.EIO, "disk"), PassingError), (OSError(errno.EACCES, "yours"), InputError)):

        def fails(error: OSError = error) -> None:
            raise refused("ledger", "l", "cannot be kept", "name another", error)

        with pytest.raises(InputError, match="ledger = 'l': cannot be kept") as found:
            apart(fails)
        assert type(found.value) is kind

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with pytest.raises(RunError, match="No space left"):
        apart(full)
    said = capfd.readouterr().err  # where this process has gRPC's threads, gRPC has its words about a fork there
    assert not any(word in said for word in ("Traceback", "disk", "yours", "No space"))


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (refused("record", "r", "cannot be written", "name another", OSError(errno.EIO, "")), 1, "see to the machine"),
        (refused("record", "r", "cannot be written", "name another", OSError(errno.EACCES, "")), 2, "name another"),
        (BusyError("store", "s", "is in use"), 2, "is in use"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "Too many"),
        (RunError("it had to"), 1, "it had to"),
        (LostError(Path("store.db"), "is damaged"), 2, "is damaged"),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception, code: int, said: str) -> None:
    found = ended_by(error)
    assert found is not None
    assert (found[1], said in found[0]) == (code, True), found


class Ends(NodeProcess):
    """A node that ends by an error before it has begun, or after."""

    def __init__(self, before: Exception | None = None, after: Exception | None = None) -> None:
        super().__init__(None, False, NodeTable(plan="plan.json", node="node"))
        self._before, self._after = before, after

    async def _start(self) -> None:
        if self._before is not None:
            raise self._before
        assert self._after is not None
        self._broke(self._after)

    async def _stop(self) -> None: ...

    def _close(self) -> None: ...


def test_an_input_error_is_one_only_before_the_node_has_begun() -> None:
    wrong = InputError("record", "r", "is read-only; make it writable")
    with pytest.raises(InputError, match="read-only"):
        Ends(before=wrong).run()
    with pytest.raises(RunError, match="read-only"):
        Ends(after=wrong).run()


def test_a_record_on_a_disk_that_fails_is_no_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with FileRecord(tmp_path / "record", Owner(bytes(32), 0, 0)) as record:
        with monkeypatch.context() as m:
            m.setattr(os, "fsync", fails)
            with pytest.raises(PassingError, match="Input/output error"):
                record.write(1)
        assert record.answered == 0
        record.write(1)
