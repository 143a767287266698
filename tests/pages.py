"""The snippets of README and docs: run as they stand, and what they print compared with what the page shows."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def snippets(pages: Iterable[Path]) -> list[Any]:
    """Each as parameters of a test: the page and the number of the snippet in it."""
    return [pytest.param(page, n, id=f"{page.name}-{n}") for page in pages for n in range(len(blocks(page, "python")))]


def run_snippet(page: Path, n: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this folder, which is the current one."""
    (folder / "snippet.py").write_text(blocks(page, "python")[n], encoding="utf-8")
    runpy.run_path(str(folder / "snippet.py"))
    printed = capsys.readouterr().out
    shown = blocks(page, "text")
    if n < len(shown):
        assert printed.splitlines() == shown[n].splitlines()
    assert os.listdir() == ["snippet.py"]  # nothing is written behind the reader's back
