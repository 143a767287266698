"""The command about predictions: theory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from confide.commands.options import Change, Json, answer

app = typer.Typer()


@app.command()
def theory(
    config: Annotated[Path, typer.Argument(help="A TOML config, or the run.json of an earlier run.")],
    change: Change = None,
    target_db: Annotated[
        float | None, typer.Option(help="Error to reach: the best step for it, and the noise it allows.")
    ] = None,
    swept: Annotated[
        str | None,
        typer.Option("--sweep", help="KEY=VALUE,VALUE,...: where it ends at each, e.g. algorithm.step=0.1,0.5"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --sweep: the curves as pictures and CSV, OUT.png and so on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Will it converge, how fast, where does it end, what does the noise cost: predicted without a run."""
    from rich.console import Console

    from confide.base.errors import InputError
    from confide.base.validation import number
    from confide.plans import config as settings
    from confide.theory.summary import summary

    if target_db is not None:
        number("target_db", target_db, -300.0, 300.0)
    if swept is not None:
        _sweep(config, change or [], swept, out, as_json)
        return
    if out is not None:
        raise InputError("out", str(out), "is for --sweep; leave it out")
    parsed = settings.load(config, change or [])
    console = Console(stderr=True, highlight=False)
    found = summary(parsed.build(), target_db, lambda what: console.print(f"{what} ...", style="dim", markup=False))
    answer(as_json, found, *(f"{name:18} {text}" for name, text in _rows(found, parsed.algorithm.step)))


def _sweep(config: Path, changes: list[str], swept: str, out: Path | None, as_json: bool) -> None:
    """One line a value, and the curves as files where they are asked for."""
    from confide.theory.sweep import asked, sweep

    key, values = asked(swept)
    rows = [point.to_dict() for point in sweep(config, changes, key, values)]
    files: list[str] = []
    if out is not None:
        from confide.figures.sweep import draw

        files = draw(key, rows, out.with_suffix(""))
    lines = [f"{key:24} {'centroid':>12} {'individual':>12}   of it noise for privacy"]
    for row in rows:
        parts = [row[f"{which}_privacy_noise"] for which in ("centroid", "individual")]
        shares = row["why"] or ", ".join("none" if part is None else f"{100.0 * part:.0f}%" for part in parts)
        lines.append(f"{row['value']!s:24} {_db(row['centroid_db']):>12} {_db(row['individual_db']):>12}   {shares}")
    answer(as_json, {"key": key, "points": rows, "files": files}, *lines, *(f"file  {path}" for path in files))


def _rows(found: dict[str, Any], step: float) -> Iterator[tuple[str, str]]:
    """For a newcomer: one line an answer."""
    why = f": {found['explanation']}" if found["explanation"] else ""
    yield "converges", {True: "yes", False: "no", None: "not known"}[found["stable"]] + why
    if found["max_stable_step"] is not None:
        yield "largest step", f"{found['max_stable_step']:.4g} is the limit of stability; this one is {step:g}"
    if found["stable"]:
        kind = "exact for squared loss" if found["exact"] else "linearised at the optimum"
        yield "ends at", f"{_pair(found['steady_state'])}, {kind}"
        for which, level in found["split"].items():
            yield f"  {which}", _split(level)
    if found["transient"] is not None:
        yield "on the way", _transient(found["transient"])
    for which, best in found["best"].items():
        if best is not None:
            yield "best step", f"{best['step']:.3g} for the {which}: {_db(best['db'])} after {best['rounds']} rounds"
    for which, allowed in found["sigma_allowed"].items():
        if allowed is not None:
            most = "any sigma" if allowed["unlimited"] else f"sigma {allowed['sigma']:.4g}"
            level = f"the {which} error at {_db(allowed['target_db'])}"
            yield "noise allowed", f"{most} keeps {level}; now {found['sigma']:.4g}"
    if found["bounds"] is not None:
        limits = {f"{name}_db": level for name, level in found["bounds"]["limits_db"].items()}
        yield "proven bounds", f"{_pair(limits)}, in the end"
    for name, row in (found["weights"] or {}).items():
        if row is not None:
            levels = f", {_pair(row)}" if row["centroid_db"] is not None else ""
            yield f"weights {name}", f"iota_2 {row['iota_2']:.4f}{levels}"
    if found["constants"] is not None:
        values = ", ".join(f"{name} {found['constants'][name]:.4g}" for name in ("nu", "delta", "xi", "iota_2"))
        yield "constants", f"{values}; all of them with --json"
    reasons: dict[str, list[str]] = {}
    for part, reason in found["refused"].items():
        reasons.setdefault(reason, []).append(part)
    for reason, parts in reasons.items():
        yield "not known", f"{', '.join(parts)}: {reason}"


def _db(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} dB"


def _pair(levels: dict[str, float | None]) -> str:
    return f"centroid {_db(levels['centroid_db'])}, individual {_db(levels['individual_db'])}"


def _split(level: dict[str, float]) -> str:
    total = sum(level.values()) or 1.0
    return ", ".join(f"{name.replace('_', ' ')} {100.0 * value / total:.0f}%" for name, value in level.items())


def _transient(found: dict[str, Any]) -> str:
    text = f"{_pair(found['last_round'])} in round {found['rounds']}"
    if found["settled_round"] is None:
        return text
    when = {
        which: f"not within {found['rounds']} rounds" if at is None else f"from round {at}"
        for which, at in found["settled_round"].items()
    }
    return f"{text}; within 0.5 dB of the end: centroid {when['centroid']}, individual {when['individual']}"
