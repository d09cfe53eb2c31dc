"""The commands that the docs show are run, and end as the docs say."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from docs.make_recording import SCENES, animated, frames
from tests import processes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


def commands() -> list[tuple[str, int]]:
    """Every ``tensordiff`` line of every shell block, with the status its comment gives, else 0."""
    found: dict[str, int] = {}
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text("utf-8")):
            for line in block.splitlines():
                if line.startswith("tensordiff "):
                    command, _, comment = line.partition("  #")
                    status = re.search(r"exits (\d)", comment)
                    found[command.strip()] = int(status[1]) if status else 0
    return list(found.items())


def test_the_docs_show_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize(("command", "status"), commands())
def test_a_command_of_the_docs(command: str, status: int, tmp_path: Path) -> None:
    words = [word.replace("/tmp/", f"{tmp_path}/") for word in shlex.split(command)[1:]]
    ran = processes.run([sys.executable, "-m", "tensordiff", *words], cwd=ROOT)
    assert ran.returncode == status, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_of_tables_have_the_cells_of_their_header(page: Path) -> None:
    tables = list(tables_of(page.read_text("utf-8")))
    broken = [row for header, *rows in tables for row in rows if cells_in(row) != cells_in(header)]
    assert broken == []


def test_a_row_over_several_lines_is_no_row() -> None:
    header = "| a | b |\n|---|---|\n"
    for rows in ("|\n`x` | y |\n", "| x | y |\nz |\n", "| x |\n", "| x | y | z |\n"):
        (table,) = tables_of(f"Text.\n\n{header}{rows}\nMore text.\n")
        assert any(cells_in(row) != cells_in(table[0]) for row in table), rows
    (table,) = tables_of(f"Text.\n\n{header}| `x|y` \\| | y |\n\nMore text.\n")
    assert [cells_in(row) for row in table] == [2, 2, 2]


def tables_of(text: str) -> Iterator[list[str]]:
    """The lines of every table: from a header, which a line of dashes follows, to the next empty line."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n[ ]*\n", prose):
        lines = block.strip("\n").splitlines()
        starts = [at for at, line in enumerate(lines) if re.fullmatch(r"\s*\|[-:| ]*-[-:| ]*\|\s*", line)]
        if starts:
            yield lines[max(starts[0] - 1, 0) :]


def cells_in(line: str) -> int:
    """How many cells a line of a table has; -1 where it is not one row in one line."""
    line = re.sub(r"`[^`]*`", "code", line.strip()).replace(r"\|", "")
    return line.count("|") - 1 if line.startswith("|") and line.endswith("|") and line != "|" else -1


def test_the_site_builds_and_all_its_links_lead_somewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = processes.run(build, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {"index.html", "library.html", "llms.txt"} <= {path.name for path in (tmp_path / "site").iterdir()}
    for target in _LINK.findall((tmp_path / "site" / "llms.txt").read_text("utf-8")):
        assert (tmp_path / "site" / target).exists(), target
    (tmp_path / "docs" / "agents.md").write_text("[to nowhere](nowhere.md)")
    assert processes.run(build, cwd=tmp_path).returncode != 0


def test_the_menu_has_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not page.startswith("decisions/0") and f": {page}\n" not in menu] == []


def test_the_list_of_decisions_has_each_of_them() -> None:
    listed = (ROOT / "docs" / "decisions" / "index.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs" / "decisions").glob("0*.md") if f"({page.name})" not in listed] == []


def test_the_page_of_commands_is_what_help_prints() -> None:
    # In a process of its own: click keeps a command's help option as the first caller in the process asked for it.
    ran = processes.run([sys.executable, "-c", "from docs.make_commands import page; print(page(), end='')"], cwd=ROOT)
    assert ran.stdout == (ROOT / "docs" / "commands.md").read_text("utf-8"), "run python -m docs.make_commands"


def test_what_agents_are_told_leads_somewhere() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text("utf-8")
    targets = _LINK.findall(text)
    assert targets
    for target in targets:  # pages of the site, which are made of these
        assert target.endswith(".html") and (ROOT / "docs" / target).with_suffix(".md").exists(), target


def test_the_recording_is_small_and_stands_still_where_nothing_moves() -> None:
    text = (ROOT / "docs" / "recording.svg").read_text("utf-8")
    root = ElementTree.fromstring(text)
    scenes = [group.get("class", "") for group in root if group.tag.endswith("}g")]
    assert len(text) < 1_000_000 and len(scenes) == len(SCENES)
    assert [scene for scene in scenes if scene.endswith("still")] == ["scene scene-1 still"]
    assert "url(http" not in text and "@media (prefers-reduced-motion: no-preference)" in text
    for scene in SCENES:
        assert escape(scene.caption) in text
    assert "~/port/candidate-vs-reference.md" in text  # and no folder of the machine that made it


def test_the_recording_is_made_from_the_app() -> None:
    scenes = SCENES[:2]
    pictures = asyncio.run(frames(scenes))
    root = ElementTree.fromstring(animated(pictures, scenes))
    shown = ["".join(group.itertext()).replace("\u00a0", " ") for group in root if group.tag.endswith("}g")]
    assert len(shown) == 2 and all("layers.1.mlp.act_fn" in text for text in shown)
    assert "diverges: rel_l2 8.3e-02 even when given the reference's inputs" in shown[1]
