"""The command about predictions: theory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from confide.commands.options import Change, Json

app = typer.Typer()


@app.command()
def theory(
    config: Annotated[Path, typer.Argument(help="A TOML config, or the run.json of an earlier run.")],
    change: Change = None,
    target_db: Annotated[
        float | None, typer.Option(help="Error to reach: the best step for it, and the noise it allows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Will it converge, how fast, where does it end, what does the noise cost: predicted without a run."""
    from rich.console import Console

    from confide.base.validation import number
    from confide.plans import config as settings
    from confide.theory.summary import summary

    if target_db is not None:
        number("target_db", target_db, -300.0, 300.0)
    parsed = settings.load(config, change or [])
    console = Console(stderr=True, highlight=False)
    found = summary(parsed.build(), target_db, lambda what: console.print(f"{what} ...", style="dim", markup=False))
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    for line in lines(found, parsed.algorithm.step):
        print(line)


def lines(found: dict[str, Any], step: float) -> list[str]:
    """For a newcomer: one line an answer."""
    rows: list[tuple[str, str]] = []
    words = {True: "yes", False: "no", None: "not known"}
    rows.append(("converges", words[found["stable"]] + (f": {found['explanation']}" if found["explanation"] else "")))
    if found["max_stable_step"] is not None:
        rows.append(("largest step", f"{found['max_stable_step']:.4g} is the limit of stability; this one is {step:g}"))
    if found["stable"]:
        kind = "exact for squared loss" if found["exact"] else "linearised at the optimum"
        rows.append(("ends at", f"{_pair(found['steady_state'])}, {kind}"))
        rows += [(f"  {which}", _split(level)) for which, level in found["split"].items()]
    rows += _transient(found["transient"])
    rows += _best(found["best"])
    rows += _noise(found["sigma_allowed"], found["sigma"])
    rows += _bounds(found["bounds"])
    rows += _weights(found["weights"])
    if found["constants"] is not None:
        c = found["constants"]
        what = f"nu {c['nu']:.4g}, delta {c['delta']:.4g}, xi {c['xi']:.4g}, iota_2 {c['iota_2']:.4g}"
        rows.append(("constants", f"{what}; all of them with --json"))
    reasons: dict[str, list[str]] = {}
    for part, reason in found["refused"].items():
        reasons.setdefault(reason, []).append(part)
    rows += [("not known", f"{', '.join(parts)}: {reason}") for reason, parts in reasons.items()]
    return [f"{name:18} {text}" for name, text in rows]


def _db(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} dB"


def _pair(levels: dict[str, float | None]) -> str:
    return f"centroid {_db(levels['centroid_db'])}, individual {_db(levels['individual_db'])}"


def _split(level: dict[str, float]) -> str:
    total = sum(level.values()) or 1.0
    return ", ".join(f"{name.replace('_', ' ')} {100.0 * value / total:.0f}%" for name, value in level.items())


def _transient(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    text = f"{_pair(found['last_round'])} in round {found['rounds']}"
    settled = found["settled_round"]
    if settled is not None:
        when = {
            which: f"not within {found['rounds']} rounds" if at is None else f"from round {at}"
            for which, at in settled.items()
        }
        text += f"; within 0.5 dB of the end: centroid {when['centroid']}, individual {when['individual']}"
    return [("on the way", text)]


def _best(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("best step", f"{best['step']:.3g} for the {which}: {_db(best['db'])} after {best['rounds']} rounds")
        for which, best in found.items()
        if best is not None
    ]


def _noise(found: dict[str, Any], sigma: float) -> list[tuple[str, str]]:
    rows = []
    for which, allowed in found.items():
        if allowed is not None:
            most = "any sigma" if allowed["unlimited"] else f"sigma {allowed['sigma']:.4g}"
            rows.append(
                ("noise allowed", f"{most} keeps the {which} error at {_db(allowed['target_db'])}; now {sigma:.4g}")
            )
    return rows


def _bounds(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    limits = found["limits_db"]
    return [
        ("proven bounds", f"centroid {_db(limits['centroid'])}, individual {_db(limits['individual'])}, in the end")
    ]


def _weights(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    rows = []
    for name, row in found.items():
        if row is not None:
            levels = f", {_pair(row)}" if row["centroid_db"] is not None else ""
            rows.append((f"weights {name}", f"iota_2 {row['iota_2']:.4f}{levels}"))
    return rows
