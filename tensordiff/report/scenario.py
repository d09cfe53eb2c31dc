"""One scenario of a verification as a folder: which modules ran, the plot, and the report as text, HTML and JSON."""

from __future__ import annotations

from pathlib import Path

from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.compared import Compared
from tensordiff.report.saving import encoded, save
from tensordiff.report.story import Story
from tensordiff.report.writing import write_story

WITHOUT, WITH = "without_injection", "with_injection"
REFERENCE_LAYERS, CANDIDATE_LAYERS = "reference_layers", "candidate_layers"
REPORTS = ("mse_plot.png", "layer_verification_report.txt", "report.html", "report.json")


def write_scenario(session: Compared, story: Story, folder: Path) -> None:
    """Write everything but the layers themselves."""
    for side, dump in (("reference", session.reference), ("candidate", session.candidate)):
        save(folder / f"module_names_{side}.txt", encoded(module_names(dump)))
    for name in REPORTS:
        write_story(session, story, folder / name)


def module_names(dump: Dump) -> str:
    """The modules of a dump, one a line, as they ran."""
    layers = dict.fromkeys(printable(entry.layer) for entry in dump.entries if not entry.is_input)
    return "".join(f"{layer}\n" for layer in layers)
