"""``tensordiff verify --suite``: many models, each with its own settings and tolerances, and one table in the end.

    [settings]                    # for all models; a model's own override them
    dtype = "float32"

    [[model]]
    name = "llama"
    reference = "hf:models/llama"
    candidate = "max:models/llama"
    tolerances = "llama.toml"
    settings = {prompt = "Hello"}
    candidate_settings = {dtype = "bfloat16"}

Paths are relative to the suite's folder. An interrupted suite resumes: a finished model has a ``done.json``, written
last, and is verified again only if that is no longer trusted; ``session.storage.suite_record`` decides. A model that
cannot be verified does not stop the others.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.capture.job import parse_source
from tensordiff.capture.settings import Settings
from tensordiff.cli.commands.verify import VerifyOptions, verify_both
from tensordiff.cli.streams import echo, say
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.errors import AlignError, BadFile, TensordiffError, WriteError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.report.labels import glyph_of, label, number
from tensordiff.report.markdown import code, prose, table
from tensordiff.session.request import Request
from tensordiff.session.sources import source_in
from tensordiff.session.storage.dependencies import Dependencies, dependencies_of
from tensordiff.session.storage.suite_record import (
    RECORD,
    Record,
    Result,
    read_record,
    record_of,
    why_again,
    write_record,
)
from tensordiff.util.atomic_write import write_file
from tensordiff.util.small_files import read_small

SCHEMA = "tensordiff.suite/1"
_PATHS = ("rules", "tolerances", "golden", "injected")
_NUMBERS = ("atol", "rtol", "threshold")
_KEYS = {"name", "reference", "candidate", "step", "only", "settings", "reference_settings", "candidate_settings",
         *_PATHS, *_NUMBERS}  # fmt: skip
_NAME = re.compile(r"[\w][\w.-]{0,99}")
_STATUS = {"agrees": 0, "drifts": 0, "unknown": 2, "diverges": 1}


class Model(NamedTuple):
    """One model of a suite."""

    name: str
    request: Request


def verify_suite(path: Path, defaults: Request, options: VerifyOptions, *, fresh: bool, resume: bool) -> int:
    """Verify every model; returns status 1 if one diverges, else 2 if one is inconclusive, else 0.

    ``fresh`` ignores results of an earlier run; ``resume`` also accepts results that depend on something that cannot be
    checked.
    """
    models = read_suite(path, defaults)
    results = [_result(model, _own_options(model, options), fresh=fresh, resume=resume) for model in models]
    write_file(options.output / "summary.md", "\n".join(_summary(results)) + "\n", make_folders=True)
    if options.as_json:
        echo(dumps({"schema": SCHEMA, "models": [result._asdict() for result in results]}))
    else:
        for line in _table(results):
            echo(line)
    statuses = {_STATUS[result.verdict] for result in results}
    return 1 if 1 in statuses else max(statuses)


def _own_options(model: Model, options: VerifyOptions) -> VerifyOptions:
    """The options for one model: a folder and a JUnit file of its own."""
    junit = options.junit and options.junit.with_name(f"{options.junit.stem}-{model.name}{options.junit.suffix}")
    return options._replace(output=options.output / model.name, junit=junit)


def _result(model: Model, options: VerifyOptions, *, fresh: bool, resume: bool) -> Result:
    """The result of an earlier run if it still holds, else that of a new one."""
    record = "" if fresh else read_record(options.output / RECORD, model.name)
    if isinstance(record, Record):
        why = why_again(record, _depends(model, options), believes=resume)
        if not why:
            say(f"{model.name}: done already")
            return record.result
    else:
        why = record
    say(f"{model.name}: verifying again: {why}" if why else f"{model.name}: verifying")
    return _verify(model, options)


def _verify(model: Model, options: VerifyOptions) -> Result:
    begun_ns = time.time_ns()
    try:
        _remove_record(options.output)
        before = _depends(model, options)
        found, _, files = verify_both(model.request, options, model.name)
    except TensordiffError as error:
        say(f"{model.name}: {printable(error)}")
        return Result(name=model.name, verdict="unknown", culprit=None, rel_l2="-", pairs=0, sentence=printable(error))
    whole = found.whole
    culprit = whole.outcome.culprit
    result = Result(
        name=model.name,
        verdict=whole.verdict,
        culprit=label(culprit.pair) if culprit else None,
        rel_l2=number(culprit.diff.rel_l2 if culprit and culprit.diff else None),
        pairs=len(whole.rows),
        sentence=whole.sentence,
    )
    if files and found.left_out:
        return result  # what could not be run this time may run the next
    if changed := _depends(model, options).changed(before.states):
        record: Record | str = f"{changed} changed"
    else:
        own = options.output.resolve()  # with the reference's layers, which a child reads to inject them
        given = [file for file in files if not Path(file).is_relative_to(own)]
        record = record_of(result, before, given, _written(options), begun_ns)
    if isinstance(record, str):
        say(f"{model.name}: {record} while it was verified, so it will be verified again the next time")
    else:
        write_record(options.output / RECORD, record)
    return result


def _depends(model: Model, options: VerifyOptions) -> Dependencies:
    said = f"{options.save_layers} {options.junit} {options.output.absolute()}"
    return dependencies_of(model.request, said, options.output.parent)


def _written(options: VerifyOptions) -> list[Path]:
    """The files that were written for a model."""
    files = sorted(path for path in options.output.rglob("*") if path.is_file() and path.name != RECORD)
    return [path.absolute() for path in (*files, *filter(None, [options.junit]))]


def _remove_record(folder: Path) -> None:
    """Remove the record before anything is written: a folder with a record counts as finished."""
    try:
        (folder / RECORD).unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{printable(folder / RECORD)}: cannot be removed ({(error.strerror or '').lower()})"
        ) from error


# --- reading --------------------------------------------------------------------------------------


def read_suite(path: Path, defaults: Request) -> list[Model]:
    """Read the models of a suite; raises ``BadFile`` for unknown keys or wrong values."""
    try:
        found = tomllib.loads(read_small(path).decode("utf-8"))
    except OSError as error:
        raise BadFile(path, f"the suite cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"the suite is not valid TOML: {error}") from error
    tables, for_all = found.get("model"), found.get("settings", {})
    is_list = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if not tables or not is_list or set(found) - {"model", "settings"}:
        raise BadFile(path, "a suite is [[model]] tables, and [settings] for all of them; see docs/reports.md")
    models = [_model(path, table, defaults, _settings(path, defaults.settings, for_all)) for table in tables]
    if len({model.name.lower() for model in models}) < len(models):
        raise BadFile(path, "two models have the same name, and would be written to the same folder")
    return models


def _model(path: Path, table: Mapping[str, Any], defaults: Request, settings: Settings) -> Model:
    if strange := ", ".join(sorted(set(table) - _KEYS)):
        raise BadFile(path, f"a [[model]] says {strange}; known are {', '.join(sorted(_KEYS))}")
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadFile(path, f"name = {name!r:.80}: a model's name becomes a folder; use letters, digits, - and _")
    try:
        request = _request(path, table, defaults)
    except (KeyError, TypeError) as error:
        raise BadFile(path, f"model {name}: {error} is missing or is not what it should be") from error
    except AlignError as error:
        raise BadFile(path, f"model {name}: {error}") from error
    is_run = any(source_in(side) for side in (request.reference, request.candidate))
    shared = settings if is_run else Settings()  # the settings of all models concern models that are run
    own = _settings(path, shared, table.get("settings", {}))
    ours, theirs = (_settings(path, own, table.get(f"{side}_settings", {})) for side in ("reference", "candidate"))
    return Model(name, replace(request, settings=ours, candidate_settings=theirs))


def _request(path: Path, table: Mapping[str, Any], defaults: Request) -> Request:
    reference, candidate = (_path(path, table[side]) for side in ("reference", "candidate"))
    paths: dict[str, Any] = {name: _path(path, table[name]) for name in _PATHS if name in table}
    plain: dict[str, Any] = {name: table[name] for name in ("step", "only") if name in table}
    step, only = plain.get("step", 0), plain.get("only", "")
    if type(step) is not int or not isinstance(only, str):
        raise TypeError(f"step = {step!r:.80}, only = {only!r:.80}")
    limits = defaults.limits
    atol, rtol, threshold = (table.get(name) for name in _NUMBERS)
    if (tolerance := Tolerance.of(atol, rtol)) is not None:
        limits = replace(limits, tolerance=tolerance)
    if threshold is not None:
        limits = replace(limits, threshold=threshold)
    return replace(defaults, reference=reference, candidate=candidate, limits=limits, **paths, **plain)


def _path(suite: Path, text: Any) -> Path:
    """A path relative to the suite's folder; a source's target likewise, if such a file exists."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.80}")
    source = parse_source(text)
    if source is None:
        return suite.parent / text
    target = suite.parent / source.target
    return Path(str(replace(source, target=str(target)) if target.exists() else source))


def _settings(path: Path, defaults: Settings, table: Any) -> Settings:
    if not isinstance(table, dict):
        raise BadFile(path, "settings are a table: settings = {prompt = 'Hello'}")
    try:
        return Settings.from_json({**defaults.to_json(), **table})
    except (TensordiffError, TypeError) as error:
        raise BadFile(path, str(error)) from error


# --- printing -------------------------------------------------------------------------------------


def _table(results: list[Result]) -> Iterator[str]:
    wide = max(len(result.name) for result in results)
    for result in results:
        culprit = f"{result.culprit} {result.rel_l2}" if result.culprit else ""
        said = result.sentence if result.verdict == "unknown" else culprit
        glyph = glyph_of(result.verdict)
        yield f"{glyph} {result.name:{wide}}  {result.verdict:8} {result.pairs:>6} pairs  {said}".rstrip()


def _summary(results: list[Result]) -> Iterator[str]:
    good = sum(result.verdict in ("agrees", "drifts") for result in results)
    yield f"# {good} of {len(results)} models hold"
    yield ""
    lines = (
        (glyph_of(result.verdict), f"[{result.name}]({result.name}/summary.md)", result.verdict, str(result.pairs),
         code(result.culprit) if result.culprit else "", result.rel_l2, prose(result.sentence))
        for result in results
    )  # fmt: skip
    yield from table(("", "model", "verdict", "pairs", "culprit", "rel_l2", "in a sentence"), lines)
