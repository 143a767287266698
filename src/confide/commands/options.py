"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; logs and progress on stderr.")]
Change = Annotated[list[str] | None, typer.Option("--set", help="Change a key of the config: algorithm.step=0.1")]
Seed = Annotated[
    int | None, typer.Option("--test-seed", help="FOR TESTS: all noise from this seed. Nothing is private.")
]


def answer(as_json: bool, facts: Mapping[str, Any], *lines: str) -> None:
    """What a command has found: one JSON object, or lines for people."""
    print(json.dumps(facts, allow_nan=False) if as_json else "\n".join(lines))


def with_options(table: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose first parameter is a dataclass: typer sees its own parameters, then the fields of the class.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Place:
    ...     street: Annotated[str, typer.Option(help="Without the number.")] = "Main"
    >>> @with_options(Place)
    ... def visit(place: Place, times: int = 1) -> None:
    ...     print(place, times)
    >>> list(signature(visit).parameters)
    ['times', 'street']
    >>> visit(times=2, street="High")
    Place(street='High') 2
    """
    hints = get_type_hints(table, include_extras=True)
    kind = Parameter.KEYWORD_ONLY
    shared = [Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(table)]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            command(table(**{option.name: given.pop(option.name) for option in shared}), **given)

        _, *own = signature(command, eval_str=True).parameters.values()
        vars(run)["__signature__"] = Signature([*(parameter.replace(kind=kind) for parameter in own), *shared])
        run.__annotations__ = {}  # typer reads the signature
        return run

    return decorated
