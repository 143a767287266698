"""The specification in docs/design: what code cites exists there, and what it names exists in the code."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs" / "design"
PAGES = sorted(DESIGN.glob("*.md"))
NUMBER = r"[A-Z]?\d+(?:\.\d+)*"
CITED = re.compile(rf"docs/design/([\w-]+\.md)((?:(?:, | and | to |,? or ){NUMBER}\b)*)")
ELSEWHERE = re.compile(r"shared[ /]design|the design's|(?<![\w/-])(?:flows|architecture|algorithm|predictions)\.md")


def written() -> list[tuple[Path, str]]:
    """All of src and tests, with docstrings and comments as one line each that wraps."""
    files = [path for folder in ("src", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = [(path, path.read_text(encoding="utf-8")) for path in files if path != Path(__file__)]
    return [(path, re.sub(r"\s*\n\s*(?:# )?", " ", text)) for path, text in texts]


def sections(page: Path) -> set[str]:
    """Numbers of headings, and names of invariants in a table."""
    found = re.findall(rf"^(?:#+|\|) ({NUMBER})(?=[. ])", page.read_text(encoding="utf-8"), re.MULTILINE)
    return set(found)


CITATIONS = sorted(
    {
        (str(path.relative_to(ROOT)), page, number)
        for path, text in written()
        for page, numbers in CITED.findall(text)
        for number in re.findall(NUMBER, numbers) or [""]
    }
)


def test_there_are_citations_of_every_page_of_proofs() -> None:
    assert {page for _, page, _ in CITATIONS} >= {
        "flows.md",
        "privacy.md",
        "arithmetic.md",
        "algorithm.md",
        "secure-sum.md",
    }
    assert len(CITATIONS) >= 30


@pytest.mark.parametrize(("file", "page", "number"), CITATIONS)
def test_what_is_cited_exists(file: str, page: str, number: str) -> None:
    assert (DESIGN / page).exists(), f"{file} cites {page}"
    assert not number or number in sections(DESIGN / page), f"{file} cites {page}, {number}"


def test_nobody_cites_a_page_outside_the_house() -> None:
    found = {str(path): hit[0] for path, text in written() if (hit := ELSEWHERE.search(text))}
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_cite_sections_that_exist(page: Path) -> None:
    for name, numbers in re.findall(
        rf"\]\(([\w-]+\.md)\)((?:,? (?:and )?{NUMBER}\b)*)", page.read_text(encoding="utf-8")
    ):
        for number in re.findall(NUMBER, numbers):
            assert number in sections(DESIGN / name), f"{page.name} cites {name}, {number}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_modules_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`confide\.((?:\w+\.)*\w+)`", text):
        assert resolves(f"confide.{name}"), f"{page.name} names confide.{name}"
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
        names = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert not test or test in names, f"{page.name} names {file}::{test}"


def resolves(dotted: str) -> bool:
    """Whether this is a module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    if not module:
        return dotted == "confide"
    try:
        importlib.import_module(dotted)
    except ModuleNotFoundError:
        return resolves(module) and hasattr(importlib.import_module(module), name)
    return True


INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "L1", "L2", "L3", "R4", "P1")


def test_every_invariant_names_a_test() -> None:
    rows = re.findall(
        r"^\| ([ILRP]\d) \|.*\| `(tests/[\w/]+\.py::\w+)` \|$", (DESIGN / "flows.md").read_text(), re.MULTILINE
    )
    assert [name for name, _ in rows] == list(INVARIANTS)


def test_what_a_machine_is_told_to_crash_at_is_specified() -> None:
    """All points of the machine of a server but those of removal, rejoin and release."""
    said = (DESIGN / "flows.md").read_text(encoding="utf-8").partition("## 5.")[2].partition("## 6.")[0]
    machines = "".join(path.read_text() for path in (ROOT / "src/confide/deploy/machines").glob("*.py"))
    points = {p for p in re.findall(r"\bat\(\"([\w.]+)\"\)", machines) if not p.startswith(("relay.", "release."))}
    assert len(points) >= 15
    assert points <= set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", said))


def test_the_rooms_are_those_that_the_imports_are_checked_by() -> None:
    """In the README of the design in the order of the layers, which import-linter writes from above."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = next(c for c in project["tool"]["importlinter"]["contracts"] if c["name"] == "rooms")["layers"]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (DESIGN / "README.md").read_text(), re.MULTILINE)
    assert [set(re.findall(r"\w+", row)) for row in rows] == [set(re.findall(r"\w+", x)) for x in reversed(layers)]
    layout = (ROOT / "README.md").read_text().partition("## Layout")[2].partition("\n## ")[0]
    for room in (room for layer in layers for room in re.findall(r"\w+", layer)):
        assert (ROOT / "src" / "confide" / room / "__init__.py").exists()
        assert re.search(rf"^ {{4}}(?:\w+ )*{room}\b", layout, re.MULTILINE), f"the README's layout lacks {room}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / name).exists(), f"{page.name} links {name}"


def test_every_page_is_in_the_list() -> None:
    said = (DESIGN / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"README.md"} <= set(re.findall(r"^\| \[([\w-]+\.md)\]", said, re.MULTILINE))
