"""The stream behind noise that leaves a machine: ChaCha20, used once, and nothing said about the key."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import numpy as np
import pytest
from scipy import stats

from confide.base.errors import InputError, RunError
from confide.laws.secret_stream import SecretStream

KEY = bytes(range(32))


def test_words_are_chacha20() -> None:
    """RFC 8439, A.1, test vector 1: its first 32 bytes become the next key, the rest is handed out."""
    rest = bytes.fromhex("da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586")
    assert SecretStream(bytes(32)).words(4).astype("<u8").tobytes() == rest


def test_words_do_not_depend_on_how_they_are_asked_for() -> None:
    a, b = SecretStream(KEY), SecretStream(KEY)
    parts = [b.words(n) for n in (0, 1, 8187, 5, 30_000)]
    assert np.array_equal(a.words(38_193), np.concatenate(parts))


def test_words_are_uniform_and_never_repeat() -> None:
    words = SecretStream(KEY).words(200_000)
    assert len(np.unique(words)) == len(words)
    assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-3


def test_key_is_not_shown() -> None:
    secret = b"a secret key, thirty-two letters"
    stream = SecretStream(secret)
    assert repr(stream) == str(stream) == f"{stream}" == "SecretStream()"
    assert not hasattr(stream, "__dict__")
    with pytest.raises(InputError) as error:
        SecretStream(secret + b"!")
    assert "secret key" not in str(error.value)
    assert "33 bytes" in str(error.value)
    with pytest.raises(InputError, match="str"):
        SecretStream("a secret key, thirty-two letters")  # type: ignore[arg-type]


def test_used_words_and_keys_are_erased() -> None:
    stream = SecretStream(KEY)
    used = stream.words(100)
    assert stream._key != KEY
    assert not stream._block[:104].any()
    assert not np.isin(used, stream._block).any()
    assert np.frombuffer(stream._key, dtype="<u8")[0] not in stream._block


def test_stream_is_not_copied() -> None:
    stream = SecretStream()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="drawn twice"):
            attempt(stream)


def test_stream_refuses_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SecretStream()
    stream.words(1)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RunError, match="fork"):
        stream.words(1)


def test_threads_never_get_the_same_words() -> None:
    stream, parts = SecretStream(KEY), []
    threads = [threading.Thread(target=lambda: parts.extend(stream.words(777) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = np.concatenate(parts)
    assert len(np.unique(words)) == len(words) == 4 * 50 * 777


@pytest.mark.parametrize("bad", [-1, 1.5, "3", None, True, 2**33])
def test_bad_sizes(bad: object) -> None:
    with pytest.raises(InputError, match=r"^n = "):
        SecretStream().words(bad)  # type: ignore[arg-type]
