"""The folder of released models: a copy of what the store has, written when it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import Any

from confide.base.errors import InputError, RunError
from confide.deploy.machines.release import Released
from confide.problems import model_file


class ReleasedFolder:
    """Attributes:
    path: of the last model.
    why: what is in the store is not in the folder; "" if it is.
    """

    def __init__(self, folder: Path, described: Callable[[Released], dict[str, Any]], kept: Iterable[Released]) -> None:
        self.path, self.why = folder / model_file.LATEST, ""
        self._folder, self._described = folder, described
        self._kept, self._written = {found.attempt: found for found in kept}, False
        self._guard = Lock()

    def add(self, found: Released) -> None:
        with self._guard:
            self._kept[found.attempt], self._written = found, False

    def look(self) -> str:
        """Write what is not there; returns why that cannot be done."""
        with self._guard:
            self.why = "" if self._written else self._write()
            self._written = not self.why
            return self.why

    def _write(self) -> str:
        models = [(found.mean, self._described(found)) for _, found in sorted(self._kept.items())]
        try:
            if not model_file.holds(self._folder, models):
                for weights, meta in models:
                    model_file.write(self._folder, weights, meta)
        except (InputError, RunError) as e:
            return str(e)
        except OSError as e:
            return f"{self._folder}: {e.strerror or e}"
        return ""
