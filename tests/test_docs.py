"""The commands that the docs show are run, and end as the docs say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

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
