"""A signed bundle: plans, ledger, versions and statement in one file that an auditor checks without us.

The ledger is whole: all runs of its file, each priced anew by its own plan. `plan` is that of the run which the
statement is about, `others` are those of the other runs.

Of a deployment there may be receipts: which server was told which result of a release, by whom, signed by both. They
show whether all were told the same, not that it was the sum.

The file is canonical JSON; the Ed25519 signature is over the canonical JSON of everything but itself. A valid
signature says that the holder of the key vouches for the whole: compare the key with one received another way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.base import canonical
from confide.base.durable_files import create_file
from confide.base.errors import InputError, RunError
from confide.base.files import FULL, write_text
from confide.plans.plan import Plan
from confide.plans.text import encoded
from confide.plans.words import Nothing
from confide.privacy.ledger import (
    FREE,
    Book,
    Part,
    Promise,
    book_lines,
    compose,
    paid_by,
    read,
    verify_lines,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from confide.privacy.price import Price


FORMAT = 3
LARGEST = 256 * 2**20  # bytes of a bundle
LARGEST_KEY = 2**14
OF_DATA = "is the ledger of a data set, which has no messages; a bundle is about the ledger of a run"
TOLERANCE = 1e-9  # of sums of costs: relative, far above rounding and far below meaning
_PARTS = {  # the fields of a bundle and their types
    "format": int,
    "plan": dict,
    "others": list,
    "ledger": list,
    "versions": dict,
    "statement": dict,
    "receipts": list,  # since format 3
    "public_key": str,
    "signature": str,
}


@dataclass(frozen=True)
class Check:
    """One check of a bundle: passed (True), failed (False) or not made (None), and why."""

    name: str
    ok: bool | None
    reason: str


@dataclass(frozen=True)
class Report:
    """What a bundle was found to be. `signer` is the key that signed it in hex, `plan` the plan's hash."""

    checks: tuple[Check, ...]
    signer: str
    plan: str | None
    dataset: str | None
    totals: tuple[Mapping[str, Any], ...]
    statement: Mapping[str, Any] | None = None  # computed anew from the plan
    spent: Mapping[str, Any] | None = None  # by all runs of the ledger together

    @property
    def ok(self) -> bool:
        """No check failed. One that was not made is listed with its reason."""
        return all(check.ok is not False for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.ok is False)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": self.ok} | asdict(self)


def make_bundle(
    plan: Plan,
    ledger_path: str | Path,
    statement: Mapping[str, Any],
    versions: Mapping[str, str],
    key: Ed25519PrivateKey,
    others: Sequence[Plan] = (),
    receipts: Sequence[Any] = (),
) -> str:
    """The text of a signed bundle; `others` are the plans of the other runs in the ledger.

    `statement` may hold anything; its "totals", the ledger's sums for each unit, are added if absent. What does not
    hold together is not signed; a budget that was passed is, for the auditor to see, and so are different results.
    """
    book = read(ledger_path)
    if book.header.of_data:
        raise InputError("bundle.ledger", str(ledger_path), OF_DATA)
    statement = {"totals": unit_totals(book)} | dict(statement)
    checks, _ = _by_the_plans([plan, *others], book, statement)
    for check in (*checks, *_receipts(plan, book, receipts)):
        if check.ok is False and check.name not in ("budget", "results"):
            raise InputError(f"bundle.{check.name}", str(ledger_path), check.reason)
    content = {
        "format": FORMAT,
        "plan": encoded(plan),
        "others": [encoded(p) for p in others],
        "ledger": list(book_lines(book)),
        "versions": dict(versions),
        "statement": statement,
        "receipts": list(receipts),
        "public_key": public_hex(key.public_key()),
    }
    signature = key.sign(canonical.dumps(content, "bundle").encode())
    return canonical.dumps(content | {"signature": signature.hex()}, "bundle")


def save_bundle(path: str | Path, text: str) -> None:
    write_text(path, text + "\n")


def verify_bundle(path: str | Path, trusted_key: str | Ed25519PublicKey | None = None) -> Report:
    """Check a bundle, offline. A bad bundle gives failed checks; a file that is no bundle raises InputError.

    Args:
        trusted_key: the signer's public key (hex), received another way; without it the signer is not checked.
    """
    trusted = None if trusted_key is None else _public(trusted_key)
    try:
        content = canonical.loads(canonical.read_text(path, "bundle", LARGEST), "bundle")
        older = isinstance(content, dict) and content.get("format") == 2
        parts = {name: kind for name, kind in _PARTS.items() if not (older and name == "receipts")}
        canonical.check_keys("bundle", content, parts)
    except InputError as e:
        problem = e.remedy if e.field == "bundle" else str(e)
        raise InputError("bundle", str(path), problem) from None
    for name, kind in parts.items():
        if type(content[name]) is not kind:
            raise InputError(
                "bundle", str(path), f"its {name} is a {type(content[name]).__name__}, not a {kind.__name__}"
            )
    if content["format"] != FORMAT and not older:
        raise InputError("bundle", str(path), f"has format {content['format']}; this confide reads {FORMAT}")

    signer = content["public_key"]
    plans, plan_check = _plans([content["plan"], *content["others"]])
    book, ledger_check = _ledger(content["ledger"])
    checks = [_signature(content), _signer(signer, trusted), plan_check, ledger_check]
    said, spent = None, None
    if plans and book is not None:
        found, said = _by_the_plans(plans, book, content["statement"])
        checks += [*found, *_skips(book), *_receipts(plans[0], book, content.get("receipts", []))]
        spent = _spent(book, plans[0].privacy.delta)
    else:
        reason = f"needs a valid {'ledger' if plans else 'plan'}"
        checks += [Check(name, None, reason) for name in ("events", "rounds", "prices", "budget", "statement")]
    return Report(
        tuple(checks),
        signer,
        plans[0].hash if plans else None,
        book.dataset if book else None,
        tuple(unit_totals(book)) if book else (),
        said,
        spent,
    )


def _by_the_plans(
    plans: Sequence[Plan], book: Book, statement: Mapping[str, Any]
) -> tuple[list[Check], dict[str, Any] | None]:
    """What follows from these plans, the first of which the statement is about, and that statement, computed anew."""
    latest, *others = plans
    known = {p.hash: p for p in (*others, latest)}
    priced = {hash: _priced(p) for hash, p in known.items()}
    first = priced[latest.hash]
    said = None if isinstance(first, str) else first.statement().to_dict()
    if strange := {event.plan for event in book.events} - known.keys():
        reason = f"plan {min(strange)} is not in the bundle"
        checks = [Check(name, None, reason) for name in ("rounds", "prices", "budget")]
    else:
        checks = [_rounds(known, book), _prices(priced, book), _budget(known, book)]
    return [_same_plan(known, book), *checks, _statement(statement, book, said)], said


def unit_totals(book: Book) -> list[dict[str, Any]]:
    """A statement's "totals": what each unit spent in each run, {"run", "unit", "events", "rho", "epsilon"}."""
    events = Counter((n, event.unit) for n, run in enumerate(book.runs) for event in run.events)
    return [
        {"run": run, "unit": unit, "events": events[run, unit], "rho": paid.rho, "epsilon": paid.epsilon}
        for (run, unit), paid in compose([book]).items()
    ]


def _spent(book: Book, delta: float) -> dict[str, Any]:
    """What all runs cost together, with the promise that it is about."""
    promise = {} if book.promise is None else book.promise.to_dict()
    paid = paid_by([book])
    return {"runs": len(book.runs), "rho": paid.rho, "epsilon": paid.at(delta), "delta": delta} | promise


# ---- keys


def generate_key(path: str | Path) -> str:
    """Make a signing key in a new file that only its owner can read; returns the public key in hex."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        create_file(Path(path), pem, 0o600)
    except FileExistsError:
        raise InputError("key", str(path), "exists; a key is never overwritten, name another") from None
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        if isinstance(e, OSError) and e.errno in FULL:
            raise RunError(f"{path}: the key could not be written ({why})") from None
        raise InputError("key", str(path), f"cannot be written ({why}); name another place") from None
    return public_hex(key.public_key())


def load_key(path: str | Path) -> Ed25519PrivateKey:
    """The signing key in a file; one that others can read is refused."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = canonical.read_private(path, "key", LARGEST_KEY)
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:
        raise InputError("key", str(path), "is encrypted; give one without a password, readable by you only") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError("key", str(path), "is not a private key in PEM (PKCS8)") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError("key", str(path), "is not an Ed25519 key; make one with generate_key")
    return key


def public_hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def _public(key: str | Ed25519PublicKey) -> str:
    if not isinstance(key, str):
        return public_hex(key)
    key = key.strip().lower()
    if not canonical.is_digest(key):
        raise InputError("trusted_key", key, "must be an Ed25519 public key in 64 hex digits")
    return key


# ---- checks


def _signature(content: Mapping[str, Any]) -> Check:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed = {name: value for name, value in content.items() if name != "signature"}
    try:
        key = Ed25519PublicKey.from_public_bytes(_hex(content["public_key"], 32))
        key.verify(_hex(content["signature"], 64), canonical.dumps(signed, "bundle").encode())
    except ValueError as e:
        return Check("signature", False, str(e))
    except InvalidSignature:
        return Check("signature", False, "does not belong to this content and key: one of them was changed")
    return Check("signature", True, "belongs to this content and key")


def _signer(signer: str, trusted: str | None) -> Check:
    if trusted is None:
        return Check("signer", None, f"compare the key {signer[:80]} with one received another way")
    if signer != trusted:
        return Check("signer", False, f"signed with {signer[:80]}, trusted is {trusted}")
    return Check("signer", True, "signed with the trusted key")


def _plans(encoded: Sequence[Any]) -> tuple[list[Plan], Check]:
    """All of them, or none."""
    found = []
    for data in encoded:
        try:
            found.append(Plan.from_text(canonical.dumps(data, "plan")))
        except InputError as e:
            return [], Check("plan", False, str(e))
    return found, Check("plan", True, f"is a plan, {found[0].hash}")


def _ledger(texts: Sequence[Any]) -> tuple[Book | None, Check]:
    if not all(isinstance(text, str) for text in texts):
        return None, Check("ledger", False, "must be a list of lines")
    try:
        book = verify_lines(texts, "bundle")
    except InputError as e:
        return None, Check("ledger", False, e.remedy)
    if book.header.of_data:
        return None, Check("ledger", False, OF_DATA)
    return book, Check("ledger", True, f"{len(book.events)} events in an unbroken chain")


def _same_plan(plans: Mapping[str, Plan], book: Book) -> Check:
    """Was every event of a run made under one of the plans, and is that what the ledger promises?"""
    n = 0
    for run in book.runs:
        hash = run.plan
        for event in run.events:
            n += 1
            if event.plan not in plans or event.plan != hash:
                given = ", ".join(plans)
                return Check("events", False, f"event {n} was made under plan {event.plan}, the bundle's is {given}")
        if hash is not None and run.header.promise != Promise.of(plans[hash].privacy):
            said = f"the ledger is about {run.header.promise}, plan {hash} about {Promise.of(plans[hash].privacy)}"
            return Check("events", False, said)
    return Check("events", True, "all were made under the plan" + ("s of their runs" if len(book.runs) > 1 else ""))


def _rounds(plans: Mapping[str, Plan], book: Book) -> Check:
    """In each run at most one sum, and after it one message or skip, in a round of a unit, and its plan's releases."""
    n = 0
    for run in book.runs:
        seen: set[tuple[int, int, bool]] = set()  # a sum, and then a message or a skip
        releases: Counter[int] = Counter()
        for event in run.events:
            n += 1
            plan = plans[event.plan]
            what = f"event {n}, a {event.kind} of unit {event.unit} in round {event.round},"
            if event.unit >= plan.P or event.round > plan.rounds:
                limits = f"the plan's {plan.P} units and {plan.rounds} rounds"
                return Check("rounds", False, f"{what} is outside {limits}")
            if event.kind == "release" and isinstance(plan.privacy.release, Nothing):
                return Check("rounds", False, f"{what} is not in the plan")
            if event.kind == "release":
                releases[event.unit] += 1
                if releases[event.unit] > plan.privacy.releases:
                    return Check(
                        "rounds", False, f"{what} is one more than the {plan.privacy.releases} that the plan allows"
                    )
                continue
            if releases[event.unit]:  # which are priced after all that the unit sent
                return Check("rounds", False, f"{what} comes after a release")
            this = (event.unit, event.round, event.kind == "sum")
            if this in seen or (event.unit, event.round, False) in seen:
                return Check("rounds", False, f"{what} comes a second time, or too late")
            seen.add(this)
    sizes = " and ".join(dict.fromkeys(f"{p.rounds} rounds of {p.P} units" for p in plans.values()))
    return Check("rounds", True, f"{n} events within {sizes}, none twice")


def _skips(book: Book) -> list[Check]:
    """What no bundle can show: that nothing left in a round is what the unit itself says of it."""
    skips = sum(event.kind == "skip" for event in book.events)
    if not skips:
        return []
    reason = f"{skips} rounds are written as skipped, and cost nothing: that no message left in them is the unit's word"
    return [Check("skips", None, f"{reason}; ask its neighbours, whose logs say whose rounds they applied")]


def _receipts(plan: Plan, book: Book, given: Sequence[Any]) -> list[Check]:
    """Do the receipts hold, and was everybody told the same result?"""
    made = sum(event.kind == "release" for event in book.events)
    if not given:
        reason = f"{made} releases, and no receipts of who was told which result: confide ledger --receipts"
        return [Check("results", None, reason)] if made and plan.deployment is not None else []
    from confide.secure.receipts import disputes, holds, of_dict  # with pydantic: most bundles have none

    try:
        found = [of_dict(f"bundle.receipts[{n}]", receipt) for n, receipt in enumerate(given)]
    except InputError as e:
        return [Check("receipts", False, str(e))]
    identities = [bytes.fromhex(unit.identity) for unit in plan.units]
    for n, receipt in enumerate(found, 1):
        if not holds(receipt, bytes.fromhex(plan.hash), identities):
            return [Check("receipts", False, f"receipt {n}: its signatures are not those of the servers that it names")]
    held = Check("receipts", True, f"{len(found)} are signed by the server that told and the one that was told")
    if wrong := next(disputes(found), None):
        attempt, relays = wrong
        who = " and ".join(plan.units[p].name for p in relays)
        lie = "and lied" if len(relays) == 1 else "and one of them lied, or was sent other words"
        return [held, Check("results", False, f"{who} told different results of attempt {attempt}, {lie}")]
    told = {
        attempt: {r.server for r in found if r.attempt == attempt} for attempt in sorted({r.attempt for r in found})
    }
    each = "; ".join(f"attempt {attempt}: {_units(plan, servers)}" for attempt, servers in told.items())
    return [held, Check("results", True, f"were told alike, which does not show that the sum is right ({each})")]


def _units(plan: Plan, servers: set[int]) -> str:
    missing = [plan.units[p].name for p in range(plan.P) if p not in servers]
    return f"{len(servers)} of {plan.P} servers" + (f", not known of {', '.join(missing)}" if missing else "")


def _priced(plan: Plan) -> Price | str:
    """What a plan costs, computed anew; or why it has no price."""
    from confide.privacy.price import agreed, price

    try:
        return price(plan) if plan.deployment is None else agreed(plan)
    except InputError as e:
        return str(e)


def _prices(priced: Mapping[str, Price | str], book: Book) -> Check:
    """Does every event carry the cost that follows from its plan?"""
    n = 0
    for run in book.runs:
        if run.plan is None:
            continue
        by = priced[run.plan]
        if isinstance(by, str):
            return Check("prices", False, f"cannot be computed from the plan: {by}")
        if problem := _wrong_price(by, run, n):
            return Check("prices", False, problem)
        n += len(run.events)
    return Check("prices", True, "every event costs what the plan says, computed anew")


def _wrong_price(priced: Price, run: Part, before: int) -> str | None:
    messages = priced.messages
    published: Counter[int] = Counter()
    sums: set[tuple[int, int]] = set()  # (unit, round) that a sum has paid for
    for n, event in enumerate(run.events, before + 1):
        if event.kind == "skip":
            continue
        if event.kind == "release":
            true = priced.release_after(published[event.unit]) if priced.releases else None
        elif event.kind == "message" and (event.unit, event.round) in sums:
            true = FREE
        else:
            published[event.unit] += 1
            j = published[event.unit]
            true = messages[j - 1] if j <= len(messages) else None
        if event.kind == "sum":
            sums.add((event.unit, event.round))
        if true is None:
            return f"event {n}: the plan has no such {event.kind}"
        for name in ("rho", "epsilon", "law", "sigma", "sensitivity"):  # the law decides how a rho is converted
            said, found = getattr(event.cost, name), getattr(true, name)
            if not _agree(said, found):
                return f"event {n}, a {event.kind} of unit {event.unit}: {name} {said!r}, by the plan {found!r}"
    return None


def _budget(plans: Mapping[str, Plan], book: Book) -> Check:
    """Did each run stay within its plan's budget, together with the runs before it?"""
    words: dict[str, None] = {}
    for n, run in enumerate(book.runs, 1):
        if run.plan is None:
            continue
        budget = plans[run.plan].privacy.budget
        if budget is None:
            continue
        name = "epsilon" if budget.rho is None else "rho"
        words[f"{name} {budget.limit:g}"] = None
        used = paid_by([replace(book, runs=book.runs[:n])]).used(budget)
        if used > budget.limit * (1.0 + TOLERANCE):
            spent = f"an event has no bound in {name}" if math.isinf(used) else f"spent {name} {used:g}"
            before = "" if n == 1 else f"run {n}, with those before it: "
            return Check("budget", False, f"the worst unit: {before}{spent}, the budget is {budget.limit:g}")
    return Check("budget", True, f"every unit stayed within {' and '.join(words)}" if words else "the plan sets none")


def _statement(statement: Mapping[str, Any], book: Book, anew: Mapping[str, Any] | None) -> Check:
    """Do the statement's totals agree with the ledger's, and its epsilons with those computed `anew`?"""
    if anew is not None and "accounts" in statement:
        wrong = next(_differing("", {k: v for k, v in statement.items() if k != "totals"}, anew), None)
        if wrong is not None:
            return Check("statement", False, wrong)
    stated, found = statement.get("totals"), unit_totals(book)
    if not isinstance(stated, list | tuple) or len(stated) != len(found):
        return Check("statement", False, f"totals must be a list for the {len(found)} units in the ledger")
    for said, true in zip(stated, found, strict=True):
        if not isinstance(said, Mapping) or set(said) != set(true):
            return Check("statement", False, f"totals must hold {', '.join(true)} for each unit")
        for name in true:
            if not _agree(said[name], true[name]):
                claim = f"{name} is stated as {said[name]!r:.80}, the ledger adds to {true[name]!r}"
                reason = f"totals of unit {true['unit']} in run {true['run']}: {claim}"
                return Check("statement", False, reason)
    if anew is not None and "accounts" not in statement:
        return Check(
            "statement", None, "its totals are the ledger's; its words are its own, what follows is the plan's"
        )
    return Check("statement", True, "its totals are the ledger's, its epsilons those of the plan")


def _differing(place: str, said: object, true: object) -> Iterator[str]:
    """Where what is stated is not what follows from the plan, a sentence each."""
    if isinstance(said, Mapping) and isinstance(true, Mapping):
        for name in sorted(said.keys() | true.keys()):
            inner = f"{place}.{name}".removeprefix(".")
            if name not in said or name not in true:
                yield f"{inner} is {'left out' if name not in said else 'not what follows from the plan'}"
            else:
                yield from _differing(inner, said[name], true[name])
    elif isinstance(said, list | tuple) and isinstance(true, list | tuple):
        if len(said) != len(true):
            yield f"{place} has {len(said)} entries, by the plan {len(true)}"
        for n, (a, b) in enumerate(zip(said, true, strict=False)):
            yield from _differing(f"{place}[{n}]", a, b)
    elif not _agree(said, true):
        yield f"{place} is stated as {said!r:.80}, by the plan it is {true!r:.80}"


def _agree(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE)
    return type(a) is type(b) and a == b


def _hex(text: str, size: int) -> bytes:
    if len(text) != 2 * size or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{text[:40]!r} is not {size} bytes in hex")
    return bytes.fromhex(text)
