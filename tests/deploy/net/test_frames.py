"""Messages in frames: whole again, bounded, and any bytes whatever are refused in one way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base.wire import MalformedError
from confide.deploy.net.frames import FRAME, HEAD, MARK, ROOM, Joiner, OversizedError, cut


def part(missing: int, piece: bytes) -> bytes:
    return bytes((MARK,)) + missing.to_bytes(4) + piece


@pytest.mark.parametrize("first", [0x00, MARK])
@pytest.mark.parametrize("size", [1, HEAD, ROOM - 1, ROOM, ROOM + 1, FRAME, FRAME + 1, 2 * ROOM, 5 << 20])
def test_a_message_comes_back_whole(size: int, first: int) -> None:
    message, joiner = bytes((first,)) + random.Random(size).randbytes(size - 1), Joiner(size)  # noqa: S311
    for _ in range(2):  # a joiner is good for many
        frames = list(cut(message))
        assert max(map(len, frames)) <= FRAME
        *others, last = [joiner.add(frame) for frame in frames]
        assert last == message
        assert set(others) <= {None}


def test_a_message_that_fits_is_not_copied() -> None:
    message = bytes(FRAME)
    (frame,) = cut(message)
    assert frame is message
    assert Joiner(FRAME).add(frame) is message


def test_an_empty_message_is_nobodys() -> None:
    with pytest.raises(ValueError, match="1 to"):
        next(cut(b""))
    with pytest.raises(MalformedError, match="frame of 0"):
        Joiner(10).add(b"")
    with pytest.raises(MalformedError, match="part of 5"):
        Joiner(10).add(part(0, b""))


def test_what_is_too_long_is_refused_before_it_is_held() -> None:
    with pytest.raises(OversizedError, match="2097152 bytes, at most 2097151"):
        Joiner((2 << 20) - 1).add(next(cut(bytes(2 << 20))))
    with pytest.raises(OversizedError, match="4294967296 bytes"):
        Joiner(1 << 26).add(part(2**32 - 1, b"x"))
    with pytest.raises(OversizedError):
        Joiner(0).add(next(cut(b"x")))


def test_a_message_is_not_made_of_tiny_frames() -> None:
    with pytest.raises(MalformedError, match="neither full nor the last"):
        Joiner(100).add(part(50, b"x"))
    with pytest.raises(MalformedError, match="needed none"):
        Joiner(100).add(part(0, b"x"))


def test_frames_are_neither_lost_nor_doubled_nor_mixed() -> None:
    first, second, last = cut(bytes(2 * ROOM + 5))
    for wrong in (first, last, next(cut(b"x")), next(cut(bytes(ROOM)))):
        joiner = Joiner(1 << 30)
        assert joiner.add(first) is None
        with pytest.raises(MalformedError, match="does not go on"):
            joiner.add(wrong)
    with pytest.raises(MalformedError, match=f"frame of {FRAME + 1} bytes"):
        Joiner(1 << 30).add(second + b"x")


@given(st.lists(st.binary(max_size=40) | st.binary(max_size=40).map(lambda b: bytes((MARK,)) + bytes(4) + b)))
def test_random_frames_are_refused_and_nothing_else(frames: list[bytes]) -> None:
    joiner = Joiner(64)
    for frame in frames:
        try:
            message = joiner.add(frame)
        except MalformedError:
            return
        assert message is not None
        assert frame == next(cut(message))  # there is one way to write a message
