"""Steady states against one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from confide.figures import figures
from confide.figures.look import COLUMN, shades, style

LEVELS = ("centroid", "individual")


@style()
def draw(key: str, rows: Sequence[Mapping[str, Any]], stem: Path) -> list[str]:
    """Pictures and CSV of rows with `value`, `centroid_db` and `individual_db`; a value without a level is a gap."""
    values = [row["value"] for row in rows]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    at = np.array(values, dtype=np.float64) if numeric else np.arange(len(values), dtype=np.float64)
    figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
    axes = figure.subplots()
    columns: dict[str, Any] = {key: [v if numeric else str(v) for v in values]}
    for which, look in zip(LEVELS, shades(len(LEVELS)), strict=True):
        levels = np.array([np.nan if (db := row[f"{which}_db"]) is None else db for row in rows])
        columns[f"{which} dB"] = [row[f"{which}_db"] for row in rows]
        axes.plot(at, levels, color=look.colour, linestyle=look.dash, marker=look.mark, label=which)
    if numeric and (at > 0.0).all() and at.max() > 20.0 * at.min():
        figures.plain_log(axes)
    if not numeric:
        axes.set_xticks(at, [str(v) for v in values])
    axes.set(xlabel=key, ylabel="steady-state MSD [dB]")
    axes.legend()
    return figures.save_with_numbers(figure, stem, f"Exact steady state against {key}", columns)
