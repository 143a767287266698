"""An owner's train function in a process of its own, a real one each: what it may do, and what it cannot do to us."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import DataError, InputError, RunError
from confide.deploy.node.observe import Json
from confide.deploy.node.training_pipe import packed, unpacked
from confide.deploy.node.training_process import TrainingProcess
from confide.deploy.node.warned import log_warnings
from patience import until

OWN = """
import json, multiprocessing, os, signal, socket, sys, time, warnings
import numpy as np

def twice(x):
    return 2 * x

def pool(weights, round, config):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return np.array(pool.map(twice, weights))

def looks(weights, round, config):
    weights += 1.0
    handlers = {s.name: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    seen = {
        "usual": handlers == {"SIGINT": signal.default_int_handler, "SIGTERM": 0, "SIGHUP": 0},
        "descriptors": {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if
                        os.path.exists(f"/proc/self/fd/{n}")},
        "network": sorted({m.partition(".")[0] for m in sys.modules} & {"grpc", "cryptography", "confide_test"}),
        "path": sys.path, "config": repr(config), "group": os.getpgrp() == os.getpid(),
    }
    print(json.dumps(seen), flush=True)
    return weights

def one_of(weights, round, config):
    match config["do"]:
        case "hang":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                open(config["here"], "w").write(str(os.getpid()) + " " + str(pool._pool[0].pid))
                pool.map(time.sleep, [1e6])
        case "leave":
            os._exit(3)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "interrupt":
            raise KeyboardInterrupt
        case "raise":
            raise ValueError("the patient 4711")
        case "shape":
            return weights[:2]
        case "warn":
            warnings.warn("the patient 4711")
            weights / np.array([0.0, 1.0, 1.0])
        case "shrink":
            for fd in range(3, 1024):
                try:
                    os.ftruncate(fd, 0)
                except OSError:
                    pass
        case "gabble":
            for fd in range(3, 1024):
                try:
                    os.write(fd, b"\\0" * 7 + b"\\5abcde")
                except OSError:
                    pass
        case "much":
            for fd in range(3, 1024):
                try:
                    os.write(fd, b"\\1" * 4096)
                except OSError:
                    pass
    return weights
"""
W = np.array([0.5, -1.0, 2.0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("print(1 / 0)")
    (tmp_path / "deadly.py").write_text("import os; os.abort()")
    (tmp_path / "statistics.py").write_text("raise RuntimeError('in place of an installed module')")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., TrainingProcess]]:
    found: list[TrainingProcess] = []

    def start(name: str, output: Path | None = None) -> TrainingProcess:
        found.append(TrainingProcess(f"mine:{name}", folder, output))
        return found[-1]

    yield start
    for process in found:
        process.close()
        assert not alive(process.pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # whoever adopted it is slow


def test_a_function_that_forks_a_pool(start: Callable[..., TrainingProcess]) -> None:
    process = start("pool")
    process.load()
    for i in (1, 2):
        assert process(W, i, {}).tolist() == (2 * W).tolist()


def test_it_is_the_owners_process(
    start: Callable[..., TrainingProcess], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules come from where the client's TOML is, after all that is installed; nothing of ours is in it."""
    away = folder / "away"
    away.mkdir()
    (away / "numpy.py").write_text("raise RuntimeError('of the working folder')")
    monkeypatch.chdir(away)
    config = {"on": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4), "deep": [{"x": 1.5}, "y", True], "n": -(2**63)}
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does it in the background
    try:
        process = start("looks", folder / "said")
    finally:
        signal.signal(signal.SIGINT, ignored)
    given = W.copy()
    assert process(given, 1, config).tolist() == (W + 1.0).tolist()
    assert np.array_equal(given, W)
    seen = json.loads((folder / "said").read_text())
    assert seen["config"] == repr(config)
    assert seen["path"][-1] == str(folder)
    assert str(away) not in seen["path"]
    assert "" not in seen["path"]
    assert (seen["usual"], seen["network"], seen["group"]) == (True, [], True)
    others = sorted({what for n, what in seen["descriptors"].items() if int(n) > 2})
    assert seen["descriptors"]["0"] == os.devnull
    assert [what.partition(":")[0] for what in others] == ["/memfd", "socket"], others
    assert (folder / "said").stat().st_mode & 0o777 == 0o600


def test_memory_of_both_cannot_be_taken_from_the_client(start: Callable[..., TrainingProcess]) -> None:
    """To look at what is gone would end it by SIGBUS."""
    process = start("one_of")
    assert process(W, 1, {"do": "shrink"}).tolist() == W.tolist()


def test_what_was_heard_stays(start: Callable[..., TrainingProcess]) -> None:
    process = start("one_of")
    first = process(W, 1, {"do": ""})
    process(2 * W, 2, {"do": ""})
    assert first.tolist() == W.tolist()


def test_whatever_becomes_of_it_the_next_round_trains(start: Callable[..., TrainingProcess]) -> None:
    process = start("one_of")
    first = process.pid
    for do, why in (
        ("leave", "the process of mine:one_of ended by itself, with 3"),
        ("crash", "the process of mine:one_of ended by SIGSEGV"),
        ("gabble", "said what is no answer"),
        ("much", "said what is no answer"),
    ):
        with pytest.raises(RunError, match=why):
            process(W, 1, {"do": do})
    assert process.pid != first
    last = process.pid
    with pytest.raises(RunError, match="mine:one_of raised KeyboardInterrupt in round 3"):
        process(W, 3, {"do": "interrupt"})
    with pytest.raises(RunError, match="mine:one_of raised ValueError in round 4"):
        process(W, 4, {"do": "raise"})
    with pytest.raises(RunError, match=r"mine:one_of returned shape \(2,\); the weights have \(3,\)"):
        process(W, 4, {"do": "shape"})
    assert process(W, 5, {"do": "nothing"}).tolist() == W.tolist()
    assert process.pid == last  # an error of the function is none of its process
    os.kill(last, signal.SIGKILL)  # while it has nothing to do
    with pytest.raises(RunError, match="ended by SIGKILL"):
        process(W, 6, {"do": "nothing"})
    assert process(W, 7, {"do": "nothing"}).tolist() == W.tolist()


def test_one_that_does_not_end_is_killed_with_all_that_it_forked(
    start: Callable[..., TrainingProcess], folder: Path
) -> None:
    process, here = start("one_of"), folder / "here"
    process.load()
    process.timeout, why = 0.5, ""
    while not (here.exists() and here.read_text().count(" ") == 1):  # on a slow machine that is over before it began
        process.timeout *= 2.0
        with pytest.raises(RunError) as failed:
            process(W, 1, {"do": "hang", "here": str(here)})
        why = str(failed.value)
    assert why == f"mine:one_of did not end in {process.timeout:g} s and was killed"
    children = [int(pid) for pid in here.read_text().split()]
    until(lambda: not any(map(alive, children)), "the end of a training with its pool")
    process.timeout = 600.0
    assert process(W, 2, {"do": "nothing"}).tolist() == W.tolist()


def test_the_end_of_the_client_is_the_end_of_a_training(start: Callable[..., TrainingProcess], folder: Path) -> None:
    process, here, raised = start("one_of"), folder / "here", list[BaseException]()

    def trains() -> None:
        try:
            process(W, 1, {"do": "hang", "here": str(here)})
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=trains)
    thread.start()
    until(lambda: here.exists() and here.read_text().count(" ") == 1)
    process.close()
    thread.join()
    (error,) = raised
    assert not isinstance(error, Exception)  # nobody takes it for a failed training, to say zeros for
    process.close()


def test_errors_are_told_without_the_words_of_others(
    start: Callable[..., TrainingProcess], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process, logger = start("one_of", folder / "own"), logging.getLogger("confide.test")
    line = "the training of round %d failed, this client adds zeros: %s"
    for do in ("raise", "shape"):
        try:
            process(W, 4, {"do": do})
        except RunError as e:
            logger.exception(line, 4, str(e))
    assert process(W, 5, {"do": "warn"}).shape == W.shape
    shown = [json.loads(Json("c1").format(record)) for record in caplog.records]
    raised, shape, *warned = shown
    assert raised["fields"] == {"round": 4, "why": "mine:one_of raised ValueError in round 4"}
    assert raised["exception"][0] == "ValueError"
    assert f"mine.py:{OWN[: OWN.index('4711')].count(chr(10)) + 1} one_of" in raised["exception"][1]
    assert shape["fields"]["why"] == "mine:one_of returned shape (2,); the weights have (3,)"
    assert {w["event"] for w in warned} == {"training warned"}
    assert [w["fields"]["kind"] for w in warned] == ["UserWarning", "RuntimeWarning"]
    assert "4711" not in json.dumps(shown)
    assert "ValueError: the patient 4711" in (folder / "own").read_text()  # which its owner asked for


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("mine:nothing", InputError, "gives no 'nothing'"),
        ("nowhere:train", InputError, "or put it beside the client's TOML"),
        ("broken:train", DataError, "loading 'broken' raised ZeroDivisionError"),
        ("deadly:train", DataError, "the process that loads it ended by SIGABRT"),
    ],
)
def test_what_cannot_be_loaded(name: str, kind: type[InputError], why: str, folder: Path) -> None:
    with TrainingProcess(name, folder) as process:
        with pytest.raises(InputError) as refused:
            process.load()
        assert type(refused.value) is kind
        assert why in str(refused.value)
        assert str(refused.value).startswith(f"train = {name!r}")
        with pytest.raises(RunError):  # nor later, which is a failed training
            process(W, 1, {})


def test_the_log_of_a_training_must_be_writable(folder: Path) -> None:
    with pytest.raises(InputError, match="train_log"):
        TrainingProcess("mine:pool", folder, folder / "no" / "where")


def test_a_table_of_a_toml_is_passed_as_it_is() -> None:
    table: dict[str, Any] = {"a": [1, 2.5, "x", True, {"b": date(1, 2, 3)}], "t": datetime(1, 2, 3).time(), "e": {}}
    assert unpacked(packed(table)) == table
    with pytest.raises(InputError, match="train_config"):
        packed({"a": 2**64})


def test_warnings_of_this_process_are_told_by_kind_and_place(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        log_warnings()
        for x in (1, 2):
            warnings.warn(f"the patient {x}", UserWarning, stacklevel=1)
        np.array([1.0]) / np.array([0.0])
    shown = [json.loads(Json("c1").format(record)) for record in caplog.records]
    assert {s["event"] for s in shown} == {"warned"}
    assert [s["fields"]["kind"] for s in shown] == ["UserWarning", "RuntimeWarning"]
    assert all("node/test_training_process.py:" in s["fields"]["at"] for s in shown)
    assert "patient" not in json.dumps(shown)


def test_a_client_does_not_import_what_stands_in_the_working_folder(tmp_path: Path) -> None:
    """Neither does its command, nor a node of a cluster (tests/cluster/test_own_training.py)."""
    (tmp_path / "pydantic.py").write_text("raise RuntimeError('of the working folder')")
    command = [Path(sys.executable).with_name("confide"), "client", "no.toml"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, "no.toml" in found.stderr) == (2, True), found.stderr
    assert "working folder" not in found.stderr
