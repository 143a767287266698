"""Keys: the published vectors, a key for every use, and secrets that nothing prints."""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
import hmac
import itertools
import json
import logging
import pickle
import pprint
import reprlib
import struct
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from confide.secure.keys import (
    CHANNEL,
    PAIR_MASK,
    SELF_MASK,
    BadKeyError,
    Identity,
    KeyPair,
    Secret,
    channel_key,
    derive,
    pair_mask_key,
    self_mask_key,
    signed_by,
)

TEXT = b"Correct-Horse/Battery+Staple_9xz"
SESSION = bytes(range(32))
SMALL_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    *((2**255 - 19 + d).to_bytes(32, "little") for d in (-1, 0, 1)),
]


def hkdf(shared: bytes, salt: bytes, info: bytes) -> bytes:
    """The first block of RFC 5869, by hand."""
    return hmac.digest(hmac.digest(salt, shared, "sha256"), info + b"\1", "sha256")


# Published


def test_x25519_rfc_7748() -> None:
    """Section 6.1."""
    alice = KeyPair.of(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair.of(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert alice.agree([bob.public, bob.public]) == [shared, shared]
    assert bob.agree([alice.public]) == [shared]


def test_hkdf_rfc_5869() -> None:
    """A.1, test case 1: the first 32 of its 42 bytes."""
    found = derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_ed25519_rfc_8032() -> None:
    """Section 7.1, tests 1 and 2."""
    one = Identity.of(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert one.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )
    assert one.sign(b"") == signature
    assert signed_by(one.public, signature, b"")
    two = Identity.of(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert two.public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert signed_by(
        two.public,
        bytes.fromhex(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4"
            "302aeeb00d291612bb0c00"
        ),
        b"\x72",
    )


# A key for every use


def test_what_a_key_is_derived_from() -> None:
    """Two ends of a pair may run different releases: session as the salt, use and ids in `info`."""
    assert pair_mask_key(TEXT, SESSION, 7, 3) == hkdf(TEXT, SESSION, b"confide pair mask" + struct.pack("<II", 3, 7))
    assert self_mask_key(TEXT, SESSION, 7) == hkdf(TEXT, SESSION, b"confide self mask" + struct.pack("<I", 7))
    assert channel_key(TEXT, SESSION, 7, 3) == hkdf(TEXT, SESSION, b"confide channel" + struct.pack("<II", 7, 3))


def test_pair_keys_are_symmetric_and_channels_are_not() -> None:
    for a, b in itertools.combinations(range(6), 2):
        assert pair_mask_key(TEXT, SESSION, a, b) == pair_mask_key(TEXT, SESSION, b, a)
        assert channel_key(TEXT, SESSION, a, b) != channel_key(TEXT, SESSION, b, a)


def test_both_ends_have_the_same_keys() -> None:
    one, other = KeyPair.of(hashlib.sha256(b"1").digest()), KeyPair.of(hashlib.sha256(b"2").digest())
    (here,), (there,) = one.agree([other.public]), other.agree([one.public])
    assert pair_mask_key(here, SESSION, 1, 2) == pair_mask_key(there, SESSION, 2, 1)
    assert channel_key(here, SESSION, 1, 2) == channel_key(there, SESSION, 1, 2)


def test_no_key_serves_twice() -> None:
    ids = [0, 1, 2, 255, 256, 65536, 2**32 - 1]
    sessions = [SESSION, bytes(32), SESSION[:-1] + b"\0", SESSION[::-1]]
    secrets = [TEXT, bytes(32), TEXT[::-1]]
    keys = []
    for shared, session in itertools.product(secrets, sessions):
        keys += [self_mask_key(shared, session, i) for i in ids]
        keys += [pair_mask_key(shared, session, a, b) for a, b in itertools.combinations(ids, 2)]
        keys += [channel_key(shared, session, a, b) for a, b in itertools.permutations(ids, 2)]
    assert len(set(keys)) == len(keys) == 12 * (7 + 21 + 42)
    assert len({PAIR_MASK, SELF_MASK, CHANNEL}) == 3
    assert not any(a.startswith(b) for a, b in itertools.permutations((PAIR_MASK, SELF_MASK, CHANNEL), 2))


def bits_test(keys: list[bytes]) -> float:
    """The smallest p-value of: this bit is a fair coin."""
    ones = np.unpackbits(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1), axis=1).sum(axis=0)
    return float(min(stats.binomtest(int(k), len(keys)).pvalue for k in np.unique(ones)))


@pytest.mark.parametrize("use", [pair_mask_key, channel_key])
def test_keys_are_256_bits_and_every_bit_varies(use: Callable[..., Secret]) -> None:
    keys = [bytes(use(TEXT, SESSION, 1, i)) for i in range(2, 2002)]
    assert {len(key) for key in keys} == {32}
    assert bits_test(keys) > 1e-3 / 256
    folded = [key[:4] + bytes(28) for key in keys]  # a peer's 32-bit seeds
    assert bits_test(folded) < 1e-9


def test_keys_use_every_bit_of_the_secret() -> None:
    flipped = [(1 << i ^ int.from_bytes(TEXT)).to_bytes(32) for i in range(256)]
    keys = [self_mask_key(seed, SESSION, 1) for seed in [TEXT, *flipped]]
    assert len({key[i : i + 4] for key in keys for i in range(0, 32, 4)}) == 257 * 8


def test_agreed_secrets_and_keys_are_secrets() -> None:
    pair = KeyPair.of(TEXT)
    found = [pair.secret, *pair.agree([pair.public]), self_mask_key(TEXT, SESSION, 1), Identity.of(TEXT).secret]
    found += [pair_mask_key(TEXT, SESSION, 1, 2), channel_key(TEXT, SESSION, 1, 2)]
    assert all(type(one) is Secret for one in found)


# Keys that admit no secret


@pytest.mark.parametrize("high_bit", [False, True])
@pytest.mark.parametrize("point", SMALL_ORDER, ids=lambda p: p.hex()[:8])
def test_points_of_small_order(point: bytes, high_bit: bool) -> None:
    """RFC 7748 ignores the top bit, so each has a twin."""
    point = bytes([*point[:31], point[31] | 128]) if high_bit else point
    pair, good = KeyPair.of(TEXT), KeyPair.of(bytes(range(32))).public
    for others in ([point], [good, point], [point, good]):
        with pytest.raises(BadKeyError) as error:
            pair.agree(others)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_public_keys_of_another_length(length: int) -> None:
    with pytest.raises(BadKeyError):
        KeyPair.of(TEXT).agree([bytes([9]) * length])


def test_nobody_to_agree_with() -> None:
    assert KeyPair.of(TEXT).agree([]) == []


def test_signatures_are_checked() -> None:
    one, other = Identity.of(TEXT), Identity.of(bytes(32))
    signature = one.sign(b"statement")
    assert signed_by(one.public, signature, b"statement")
    assert not signed_by(one.public, signature, b"Statement")
    assert not signed_by(other.public, signature, b"statement")
    for i in range(64):
        assert not signed_by(one.public, signature[:i] + bytes([signature[i] ^ 1]) + signature[i + 1 :], b"statement")
    for bad in (b"", bytes(63), bytes(64), signature + b"\0", signature[:-1]):
        assert not signed_by(one.public, bad, b"statement")
    for public in (b"", bytes(31), bytes(33), b"\xff" * 32, bytes(32)):
        assert not signed_by(public, signature, b"statement")


# What is shown

HOLDERS = {
    "Secret": lambda: Secret(TEXT),
    "KeyPair": lambda: KeyPair.of(TEXT),
    "Identity": lambda: Identity.of(TEXT),
    "list": lambda: [Secret(TEXT), KeyPair.of(TEXT), Identity.of(TEXT)],
    "dict": lambda: {"key": Secret(TEXT), Secret(TEXT): 1},
    "exception": lambda: ValueError("oh", Secret(TEXT), KeyPair.of(TEXT)),
    "fields": lambda: vars(KeyPair.of(TEXT)),
}
WAYS: dict[str, Callable[[object], str]] = {
    "repr": repr,
    "str": str,
    "ascii": ascii,
    "format": lambda x: f"{x}",
    "!r": lambda x: f"{x!r} {x!s} {x!a}",
    "!r with width": lambda x: f"{x!r:>300}",
    "str.format": lambda x: "{} {!r} {0}".replace("{0}", "{}").format(x, x, x),
    "%": lambda x: "%s %r %a" % (x, x, x),  # noqa: UP031
    "pprint": lambda x: pprint.pformat(x, width=20),
    "reprlib": reprlib.repr,
    "traceback": lambda x: "".join(traceback.format_exception(RuntimeError(x))),
    "traceback with locals": lambda x: _failing_with_locals(x),
}


def _failing_with_locals(held: object) -> str:
    try:
        raise RuntimeError("failed")
    except RuntimeError as e:
        return "".join(traceback.TracebackException.from_exception(e, capture_locals=True).format())


def shows(text: str) -> bool:
    forms = (TEXT.decode(), TEXT.hex(), base64.b64encode(TEXT).decode().rstrip("="), str(list(TEXT))[1:-1])
    return any(form[i : i + 8].lower() in text.lower() for form in forms for i in range(0, len(form) - 8, 4))


def test_the_test_can_fail() -> None:
    assert all(shows(way(TEXT)) for name, way in WAYS.items() if name != "reprlib")
    assert shows(f"...{TEXT.hex()[8:24]}...")
    assert shows(base64.b64encode(TEXT).decode())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_secrets_do_not_print(holder: str, way: str) -> None:
    assert not shows(WAYS[way](HOLDERS[holder]()))


@pytest.mark.parametrize("spec", ["", ">100", "x", "s"])
def test_a_secret_ignores_what_it_is_formatted_as(spec: str) -> None:
    assert format(Secret(TEXT), spec) == "Secret(...)"


def test_secrets_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for make in HOLDERS.values():
        x = make()
        logging.getLogger("confide").warning("%s and %r and %a", x, x, x)
        logging.getLogger("confide").error(x)
        try:
            raise ValueError(x)
        except ValueError:
            logging.getLogger("confide").exception("failed with %s", x)
    assert len(caplog.records) == 3 * len(HOLDERS)
    assert not shows(caplog.text)


@pytest.mark.parametrize("holder", ["Secret", "KeyPair", "Identity", "list"])
def test_secrets_are_not_copied(holder: str) -> None:
    """States are immutable and passed on as they are, so nothing in the package needs a copy."""
    attempts: list[Callable[[object], object]] = [copy.deepcopy, pickle.dumps, lambda x: pickle.dumps(x, 0)]
    for attempt in attempts:
        with pytest.raises(TypeError, match="neither copied nor pickled") as error:
            attempt(HOLDERS[holder]())
        assert not shows("".join(traceback.format_exception(error.value)))
    with pytest.raises(TypeError):
        copy.copy(Secret(TEXT))


def test_secrets_are_no_json() -> None:
    for make in HOLDERS.values():
        with pytest.raises(TypeError) as error:
            json.dumps(make())
        assert not shows(str(error.value))
    with pytest.raises(TypeError):
        dataclasses.asdict(KeyPair.of(TEXT))


def test_replacing_a_field_needs_no_copy() -> None:
    pair = KeyPair.of(TEXT)
    assert dataclasses.replace(pair, public=bytes(32)).secret is pair.secret


def test_a_secret_is_its_bytes() -> None:
    assert Secret(TEXT) == TEXT
    assert hash(Secret(TEXT)) == hash(TEXT)
    assert len({Secret(TEXT), TEXT}) == 1


@pytest.mark.parametrize(
    "fail",
    [
        lambda: KeyPair.of(Secret(TEXT + b"!")),
        lambda: Identity.of(Secret(TEXT + b"!")),
        lambda: KeyPair.of(TEXT).agree([bytes(32)]),
        lambda: KeyPair.of(TEXT).agree([bytes(5)]),
        lambda: pair_mask_key(Secret(TEXT), SESSION, 1, 2**32),
        lambda: self_mask_key(Secret(TEXT), SESSION, -1),
        lambda: derive(Secret(TEXT), SESSION, b"use", "one"),  # type: ignore[arg-type]
        lambda: setattr(KeyPair.of(TEXT), "secret", b""),
        lambda: KeyPair.of(TEXT) < KeyPair.of(TEXT),  # type: ignore[operator]
    ],
)
def test_failures_show_no_secret(fail: Callable[[], object]) -> None:
    """Nor in tracebacks that print every local variable of every frame."""
    with pytest.raises(Exception) as error:  # noqa: PT011
        fail()
    frames = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    frames.stack[:] = [f for f in frames.stack if f.filename != __file__]
    assert not shows("".join(frames.format()))
    assert not shows(f"{error.value!r} {error.value.args}")
