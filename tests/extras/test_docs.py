"""What docs/models.md shows is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import run_snippet, snippets

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize(("page", "n"), snippets([PAGE]))
def test_a_snippet_runs_and_prints_what_the_page_says(
    page: Path, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippet(page, n, tmp_path, capsys)
