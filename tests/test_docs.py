"""What the README, the docs and the examples show is run, and what they print is compared."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer

from confide.commands import main as cli
from confide.engines.run import Run
from exploring import more
from pages import blocks, run_snippet, snippets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
FRAMEWORKS = ("models.md",)  # its snippets need one: `extras/test_docs.py`
SNIPPETS = snippets(page for page in PAGES if page.name not in FRAMEWORKS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_there_is_something_to_run() -> None:
    assert len(blocks(ROOT / "README.md", "python")) >= 1
    assert len(SNIPPETS) >= 2
    assert len(list((ROOT / "examples").glob("*.py"))) >= 3
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(("page", "n"), SNIPPETS)
def test_a_snippet_runs_and_prints_what_the_page_says(
    page: Path, n: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_snippet(page, n, tmp_path, capsys)


APART = ("train_", "rehearse", "stale_flows", "lora", "mlp_")  # `test_examples.py`, here and in `extras`
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if not p.stem.startswith(APART)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert "privacy        not accounted" in capsys.readouterr().out


def test_the_table_of_stale_flows() -> None:
    """Line by line as it is printed: two rows of five tell what all do."""
    printed: list[str] = []

    def say(line: str) -> None:
        printed.append(line)
        if len(printed) == more(3, 6):
            raise StopIteration

    with pytest.raises(StopIteration):
        runpy.run_path(str(ROOT / "examples" / "stale_flows.py"), {"print": say}, "__main__")
    assert "\n".join(printed) in (ROOT / "docs" / "network.md").read_text(encoding="utf-8")


def test_the_table_of_the_examples(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README says: from the root of the repository, and then applied to rows of the same kind."""
    monkeypatch.chdir(ROOT)
    assert command("simulate", "examples/own_table.toml", "--out", tmp_path / "run")[0] == 0
    run = Run.load(tmp_path / "run")
    assert run.rounds == 12
    assert run.final["test_error"] is not None
    assert run.privacy is not None
    said = run.privacy["statement"]
    assert said["unprotected"] == []  # scaling, categories and labels are declared
    assert 0.0 < said["accounts"][0]["epsilon"] < 2.0
    out = tmp_path / "p.csv"
    assert command("predict", tmp_path / "run", "examples/patients.csv", "--out", out)[0] == 0
    assert len(out.read_text().splitlines()) > 100


def test_the_digits_of_the_examples(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, printed, _ = command("simulate", "examples/digits.toml", "--out", tmp_path / "run")
    assert code == 0
    assert "the digits are public" in printed
    run = Run.load(tmp_path / "run")
    assert run.model["name"] == "softmax:10"
    assert run.privacy is not None
    assert run.privacy["statement"]["unprotected"] == []
    assert run.final["test_error"] is not None
    assert run.final["test_error"] < 0.5


COMMANDS = [
    line
    for page in PAGES
    for line in re.findall(r"(?:^ {4}|`)(confide \w[^`\n]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@cache
def commands() -> typer.core.TyperGroup:
    return typer.main.get_command(cli.app)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_that_is_shown_parses(line: str) -> None:
    words = shlex.split(line.partition("#")[0].partition(">")[0])[1:]
    name, *arguments = words
    commands().commands[name].make_context(name, arguments)  # raises what the user would be told


def test_the_files_that_the_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:docs|examples|src|tests)/[\w./-]+)`", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
        for name in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).exists(), f"{page.name} links {name}"


def test_every_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        assert re.match(r"[\w-]+", line)[0] in reasons


def test_every_bench_has_its_table_on_the_page_of_speed() -> None:
    """`tests/tools/performance.py` fills it: each says when, of what and where, and how its numbers are printed."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"<!-- numbers of (\w+).*? -->\n(.*?)<!-- end -->", page, re.DOTALL))
    assert set(tables) == {*cli.BENCHES, "gpu"}
    for name, table in tables.items():
        command = "python bench/gpu.py" if name == "gpu" else f"confide bench {name}"
        said = rf"20\d\d-\d\d-\d\d, .*; .*\.\n\n    {command} --json\n\n\| figure \| value \| spread \|\n"
        assert not table or re.match(said, table)
