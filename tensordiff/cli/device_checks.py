"""The device checks of ``tensordiff doctor``: which devices the engines find, and whether they compute as the CPU does.

Frameworks are asked in their own interpreters. If torch is installed, a small model is captured on the CPU and on each
of torch's devices, by the same code as any other capture, and the dumps are compared. So devices that this project's
tests never ran on are tested where tensordiff is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np

from tensordiff.capture.engines import device_report
from tensordiff.capture.events import Done, Failed
from tensordiff.capture.interpreter import NoAnswer, ask_json, interpreter
from tensordiff.capture.job import Job, Source
from tensordiff.capture.process.layers import ROOT
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import BadFile, TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.session import Session

State = Literal["ok", "missing", "problem"]
_FRAMEWORKS = {"torch": "py", "max": "max", "onnxruntime": "onnx", "mlx": "mlx", "vllm": "vllm"}
"""Frameworks that may have devices, and the kind of source whose interpreter has them."""
_PRINT_REPORTS = "\nimport json, sys\nprint(json.dumps({name: report(name) for name in sys.argv[1:]}))\n"
_SELF_CHECK = Path(device_report.__file__).parent / "torch" / "devices" / "self_check.py"


class Check(NamedTuple):
    """The result of one check."""

    what: str
    state: State
    """``missing`` means something optional, such as an engine that is not installed."""
    says: str
    do: str = ""


def device_checks() -> Iterator[Check]:
    """Check the devices of each installed framework, then a capture on the CPU and on each of torch's devices."""
    reports = _reports()
    for framework, found in reports.items():
        yield _devices(framework, found)
    if "devices" in (of_torch := reports.get("torch", {})):
        with TemporaryDirectory(prefix="tensordiff-doctor-") as folder:
            yield from _self_checks(Path(folder), list(of_torch["devices"]))


def _reports() -> dict[str, Mapping[str, Any]]:
    """The report of each framework, from the interpreter that has it; frameworks that are not installed are
    left out.
    """
    by_python: dict[str, list[str]] = {}
    for framework, kind in _FRAMEWORKS.items():
        with suppress(BadFile):  # the user's own file names none, which the check of the engine reports
            by_python.setdefault(interpreter(kind), []).append(framework)
    found: dict[str, Mapping[str, Any]] = {}
    for python, frameworks in by_python.items():
        found |= _ask(python, frameworks)
    return {name: one for name, one in found.items() if "ModuleNotFoundError" not in str(one.get("error"))}


def _ask(python: str, frameworks: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    try:
        return ask_json(python, Path(device_report.__file__).read_text("utf-8") + _PRINT_REPORTS, *frameworks)
    except NoAnswer as error:
        # The check of each engine reports an interpreter that does not start.
        return {name: {"error": str(error)} for name in frameworks if error.has_started}


def _devices(framework: str, found: Mapping[str, Any]) -> Check:
    if (error := found.get("error")) is not None:
        return Check(f"{framework} devices", "problem", str(error), f"see that python -c 'import {framework}' works")
    if (says := found.get("says")) is not None:
        return Check(f"{framework} devices", "ok", str(says))
    devices = found["devices"]
    text = ", ".join(f"{device} ({name})" for device, name in devices.items())
    return Check(f"{framework} devices", "ok", f"cpu, {text}" if text else "cpu")


def _self_checks(folder: Path, names: Sequence[str]) -> Iterator[Check]:
    try:
        _capture("cpu", folder)
        here = _read_back(folder / "cpu")
    except TensordiffError as error:
        here = Check("self-check on cpu", "problem", str(error), "nothing can be captured by torch here")
    yield here
    if here.state == "problem":
        return
    for name in names:
        try:
            _capture(name, folder)
            yield _compare(name, folder)
        except TensordiffError as error:
            yield Check(f"self-check on {name}", "problem", str(error), "run models with --device cpu until this works")


def _capture(device: str, folder: Path) -> None:
    source = Source("py", str(_SELF_CHECK), device.replace(":", "_"))
    with Run(Job(source, Settings(deterministic=True), str(folder / device))) as run:
        for event in run:
            if isinstance(event, Failed):
                raise TensordiffError(event.sentence)
            if isinstance(event, Done):
                return
    raise TensordiffError(f"a capture on {device} ended without a result")


def _read_back(folder: Path) -> Check:
    """Check that a capture holds what was computed: the model ends in a softmax, whose rows add up to one."""
    entries = open_dump(folder).entries
    given = [entry.read() for entry in entries if entry.layer == ROOT and not entry.is_input]
    if len(given) != 1 or not np.allclose(given[0].sum(-1), 1, atol=1e-5):
        text = f"{len(entries)} tensors of a small model, and its output is not what a softmax gives"
        return Check("self-check on cpu", "problem", text, "do not trust captures of this install; please report it")
    return Check("self-check on cpu", "ok", f"{len(entries)} tensors of a small model, captured and read back")


def _compare(device: str, folder: Path) -> Check:
    session = Session.open(Request(folder / "cpu", folder / device))
    outcome = session.outcome(session.rows())
    errors = [row.diff.rel_l2 for row in outcome.rows if row.diff is not None]
    worst = max(errors, default=0.0)
    text = f"{len(errors)} tensors of a small model, rel_l2 at most {worst:.1e} from the CPU's"
    if outcome.verdict == "agrees":
        return Check(f"self-check on {device}", "ok", text)
    culprit = f", first in {outcome.culprit.pair.name}" if outcome.culprit is not None else ""
    do = "do not use this device for a reference; its driver or torch may be at fault"
    return Check(f"self-check on {device}", "problem", f"{outcome.verdict}: {text}{culprit}", do)
