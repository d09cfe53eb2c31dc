"""Dumps as a stranger would send them: real captures, whose manifests say to run what the stranger likes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.provenance import sign
from tensordiff.capture.settings import Settings
from tests.capture.models import SMALL, run_here, script

EVIL = (
    SMALL
    + """
from pathlib import Path
(Path(__file__).parent / "marker").touch()
"""
)
"""A model like any other, but for what it does when it is loaded."""
INTERPRETER = """#!/bin/sh
touch "$(dirname "$0")/marker"
"""


def changed(dump: Path, **facts: Any) -> Path:
    """The same dump, saying something else of itself."""
    manifest = dump / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **facts}))
    return dump


def signed(dump: Path, source: str, **settings: Any) -> Path:
    """The same dump, saying that this user captured it so; and they did."""
    parsed, chosen = parse_source(source), Settings(**settings)
    assert parsed is not None
    job = Job(parsed, chosen, "")
    return changed(dump, **job.facts(), signature=sign(job))


class Stranger:
    """A pair of dumps from somebody else, and whether their code was run here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = script(folder, EVIL, "evil.py")
        self.reference = self._dump("good")
        self.candidate = self._dump("bad")
        self.marker = folder / "marker"
        self.forget()

    def _dump(self, function: str) -> Path:
        dump = run_here(f"py:{self.file}:{function}", self.folder / function).path
        return changed(dump, signature=None)

    @property
    def pair(self) -> tuple[str, str]:
        return str(self.reference), str(self.candidate)

    def forget(self) -> None:
        """Forget that their code was run: it was, to make the dumps."""
        self.marker.unlink(missing_ok=True)

    @property
    def was_run(self) -> bool:
        return self.marker.exists()

    def interpreter(self) -> Path:
        """A program that calls itself an interpreter."""
        path = self.folder / "evil-interpreter"
        path.write_text(INTERPRETER)
        path.chmod(0o755)
        return path
