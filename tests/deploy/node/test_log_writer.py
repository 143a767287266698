"""Lines reach who reads them, whole and in order; who logs never waits for that, and neither does the end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from confide.deploy.node.log_writer import LogWriter
from full_pipe import fill
from patience import LIMIT, until


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with suppress(OSError):  # a test has closed it
            os.close(fd)


def record(line: str) -> logging.LogRecord:
    return logging.LogRecord("confide", logging.INFO, "", 0, line, (), None)


def lines_of(fd: int, count: int) -> list[str]:
    with open(fd, encoding="utf-8", closefd=False) as file:
        return [file.readline().rstrip("\n") for _ in range(count)]


def test_lines_come_whole_and_in_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(lambda _: None, pipe[1])
    said = [f"line {n} ü" for n in range(100)]
    for line in said:
        writer.emit(record(line))
    writer.stop()
    assert lines_of(pipe[0], 100) == said


def test_nobody_waits_for_a_reader_and_what_is_lost_is_said(pipe: tuple[int, int]) -> None:
    read, write = pipe
    full = fill(write)
    lost: list[int] = []

    def told(count: int) -> None:
        lost.append(count)
        writer.emit(record(f"{count} lost"))

    writer = LogWriter(told, write, room=100)  # of which one line of 10 bytes is with the thread, or not yet
    for n in range(50):
        writer.emit(record(f"line {n:4d}"))
    writer.stop(patience=0.1)  # it ends although nothing is read
    threading.Thread(target=lambda: os.read(read, full), daemon=True).start()
    until(lambda: lost, "the loss is told")
    assert lost[0] in (39, 40)
    kept = 50 - lost[0]
    assert [line.strip("x") for line in lines_of(read, kept + 1)] == [
        *(f"line {n:4d}" for n in range(kept)),
        f"{lost[0]} lost",
    ]


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    read, write = pipe
    full = fill(write)
    os.set_blocking(write, False)
    writer = LogWriter(lambda _: None, write)
    writer.emit(record("a line"))
    left = full
    while left:
        left -= len(os.read(read, left))
    assert lines_of(read, 1) == ["a line"]
    writer.stop(LIMIT)


def test_a_reader_that_has_gone_costs_lines_only(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    writer = LogWriter(lambda _: None, write)
    writer.emit(record("a line"))
    writer.emit(record("another"))
    writer.stop(LIMIT)
    assert not writer._thread.is_alive()
