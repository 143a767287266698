"""docs/deploying.md, followed literally: its files are written, its commands typed, what they print is compared.

Two folders stand for the two machines, each with a shell that stays open, as an engineer's does. Of the page only
addresses and the seconds of the plan are changed (`Machine.local`), and `scp` is a `cp` to the other folder.
"""

from __future__ import annotations

import configparser
import difflib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

from confide.commands import main as cli
from confide.deploy.net.endpoints import Limits
from confide.deploy.node.config import ClientConfig
from confide.privacy.ledger import read as read_ledger
from confide.problems.model_file import read
from patience import LIMIT, SCALE
from ports import own_ports

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
NAMES = ("alpha", "beta")
PROMPT = re.compile(r"(alpha|beta|each)\$ (.*)")
CLOCKS = "--adapt 10 --tick 1 --exchange 7 --drain 20"
PATIENT = "--adapt {0:g} --tick 0.2 --exchange {0:g} --drain {0:g}".format(180.0 * SCALE)  # no machine skips a round
SCP = """#!/bin/bash
to="${@: -1}"
exec cp "${@:1:$#-1}" "$MACHINES/${to%%.*}/${to#*:}"
"""


class Block(NamedTuple):
    language: str
    text: str


class Typed(NamedTuple):
    """A command, where it is typed and what it prints."""

    where: str
    command: str
    prints: tuple[str, ...]


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def typed(text: str) -> Iterator[Typed]:
    lines = text.splitlines()
    while lines:
        first = PROMPT.fullmatch(lines.pop(0))
        assert first, "a console block begins with a prompt"
        command = [first[2]]
        if here := re.search(r"<<'(\w+)'", first[2]):
            command += lines[: lines.index(here[1]) + 1]
            del lines[: len(command) - 1]
        prints = []
        while lines and not PROMPT.fullmatch(lines[0]):
            prints.append(lines.pop(0))
        yield Typed(first[1], "\n".join(command), tuple(prints))


def named_file(toml: str) -> str | None:
    """`# alpha: server/server.toml` on its first line; None for one that nobody has to write."""
    found = re.match(r"# alpha: (\S+)\n", toml)
    return found[1] if found else None


def exchanged(text: str) -> str:
    return re.sub("alpha|beta", lambda name: NAMES[1 - NAMES.index(name[0])], text)


def agrees(printed: Sequence[str], shown: Sequence[str]) -> bool:
    """… stands for anything on its line, and alone on a line for any lines."""
    pattern = "".join(
        "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


class Machine:
    """A folder and a shell in it."""

    def __init__(self, folder: Path, name: str, ports: dict[str, int]) -> None:
        self.name, self.folder, self.ports = name, folder / name, ports
        self.folder.mkdir()
        environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{environment['PATH']}"
        environment |= {"PATH": path, "MACHINES": str(folder), "CONFIDE_STATE": str(self.folder / "state")}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=self.folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def local(self, text: str) -> str:
        for name, port in self.ports.items():
            text = text.replace(f"{name}.example.org:7001", f"127.0.0.1:{port}")
        return text.replace("0.0.0.0:7001", f"127.0.0.1:{self.ports[self.name]}").replace(CLOCKS, PATIENT)

    def own(self, text: str) -> str:
        """What is written for alpha, as this machine's engineer reads it."""
        return self.local(text if self.name == "alpha" else exchanged(text))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self.own(text), encoding="utf-8")

    def type(self, command: str) -> tuple[int, list[str]]:
        """Exit code, and everything that it prints."""
        assert self._shell.stdin is not None
        end = f"end-{time.monotonic_ns()}"
        self._shell.stdin.write(f"{{ {command}\n}} < /dev/null\necho {end} $?\n".encode())
        self._shell.stdin.flush()
        *lines, last = self._until(end, command).splitlines()
        return int(last.removeprefix(end)), lines

    def _until(self, end: str, command: str) -> str:
        assert self._shell.stdout is not None
        raw, limit = b"", time.monotonic() + LIMIT
        while not re.search(rf"^{end} \d+\n".encode(), raw, re.MULTILINE):
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self._shell.stdout], [], [], left)[0]:
                pytest.fail(f"{self.name}$ {command}\ntook too long; it printed\n{raw.decode()}\n{self.logs()}")
            more = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert more, f"the shell of {self.name} ended"
            raw += more
        return raw.decode()

    def follow(self, step: Typed) -> None:
        command, shown = (step.command, step.prints)
        if step.where == "each":
            command, shown = self.own(command), tuple(map(self.own, shown))
        command, shown = self.local(command), tuple(map(self.local, shown))
        code, printed = self.type(command)
        difference = "\n".join(difflib.ndiff(shown, printed))
        assert code == 0, f"{self.name}$ {command}\nended with {code}\n{difference}\n{self.logs()}"
        assert agrees(printed, shown), f"{self.name}$ {command}\n{difference}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(self.folder.glob("*/log")))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)  # the shell, and what it left in the background
        self._shell.communicate()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scp").write_text(SCP)
    (tmp_path / "bin" / "scp").chmod(0o755)
    ports = dict(zip(NAMES, own_ports(2), strict=True))
    found: dict[str, Machine] = {}
    try:
        for name in NAMES:
            found[name] = Machine(tmp_path, name, ports)
        yield found
    finally:
        for machine in found.values():
            machine.close()


def test_the_page_from_the_first_line_to_the_last(machines: dict[str, Machine]) -> None:
    assert PAGE.count(CLOCKS) == 1
    with ThreadPoolExecutor(len(NAMES)) as engineers:
        for language, text in BLOCKS:
            if language == "toml" and (name := named_file(text)):
                for machine in machines.values():
                    machine.write(name, text)
            for step in typed(text) if language == "console" else ():
                where = NAMES if step.where == "each" else (step.where,)
                list(engineers.map(lambda name, step=step: machines[name].follow(step), where))
    check_what_is_there(*(machines[name].folder for name in NAMES))


def check_what_is_there(alpha: Path, beta: Path) -> None:
    """What the page promises and does not print."""
    weights, meta = read(alpha / "server" / "released" / "model.npz")
    assert np.array_equal(weights, read(beta / "server" / "released" / "model.npz")[0])
    assert meta["servers"] == 2
    for folder in (alpha, beta):
        events = read_ledger(folder / f"{folder.name}-1.jsonl").events
        assert [event.kind for event in events] == ["message"] * 8 + ["release"]
        for node in ("server", "c1", "c2", "c3"):
            assert " ended " in (folder / node / "log").read_text()
    for key in (*alpha.glob("*/*.key"), *alpha.glob("*/*.identity"), *alpha.glob("*/*.exchange")):
        assert key.stat().st_mode & 0o777 == 0o600, key
    assert json.loads((alpha / "bundle.json").read_text())


def parsed(words: Sequence[str]) -> None:
    """Raises what the user would be told."""
    name, *arguments = words
    typer.main.get_command(cli.app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_the_units_of_systemd_start_commands_that_exist() -> None:
    (text,) = blocks("ini")
    for kind in ("server", "client"):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(text.replace("%i", kind))
        assert set(unit.sections()) == {"Unit", "Service", "Install"}
        program, *words = shlex.split(unit["Service"]["ExecStart"])
        assert Path(program).name == "confide"
        parsed(words)
        assert words[:2] == [kind, f"{kind}.toml"]
        assert int(unit["Service"]["TimeoutStopSec"]) > ClientConfig.model_fields["grace"].default
        assert unit["Service"]["RestartPreventExitStatus"] == "2"  # bad input
        assert int(unit["Service"]["LimitNOFILE"]) >= Limits.connections + 1024
        assert signal.Signals[f"SIG{unit['Service']['ExecReload'].split()[1].removeprefix('-')}"] is signal.SIGHUP


def test_the_container_starts_a_command_that_exists() -> None:
    (text,) = blocks("dockerfile")
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    assert lines["FROM"] == "python:3.11-slim"
    (program,) = json.loads(lines["ENTRYPOINT"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert program in project["scripts"]
    parsed(json.loads(lines["CMD"]))
    (run,) = re.findall(r"docker run[^`]*", PAGE)
    assert lines["WORKDIR"] in run


def test_the_client_with_a_training_of_its_own() -> None:
    (own,) = (toml for toml in blocks("toml") if named_file(toml) is None)
    (usual,) = (toml for toml in blocks("toml") if named_file(toml) == "c1/client.toml")
    table: dict[str, Any] = tomllib.loads(usual) | tomllib.loads(own)
    del table["data"]
    config = ClientConfig.model_validate(table)
    assert config.train is not None
    module, _, function = config.train.partition(":")
    assert f"def {function}(" in (ROOT / "examples" / f"{module}.py").read_text()
    assert set(config.train_config) == {"data"}


def test_messages_of_the_table_are_those_of_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    table = PAGE.partition("| it says | do this |")[2]
    said = [text for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for text in re.findall("`([^`]+)`", row)]
    assert len(said) > 15
    for text in said:
        assert text in source, f"nothing says {text!r}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a … c"], ["a b c"], True),
        (["a … c"], ["a b d"], False),
        (["a"], [], False),
        ([], ["a"], False),
        (["…", "b"], ["a", "a", "b"], True),
        (["…", "b"], ["b"], True),
        (["b", "…"], ["b", "c"], True),
        (["a.c"], ["abc"], False),
    ],
)
def test_comparing(shown: list[str], printed: list[str], same: bool) -> None:
    assert agrees(printed, shown) == same
