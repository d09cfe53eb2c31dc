"""``max:PATH_OR_ID``: a model run by Modular MAX.

What a job asks for is read here and done by the parts in ``max_engine``. The same compiled graph serves a plain
run and an injected one: the plain run comes first, and tells what there is to put values into.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.checkpoint import Checkpoint, checkpoint, overrides_of
from tensordiff.capture.engines.max.inject import Injected, Noted, injected_run
from tensordiff.capture.engines.max.model import Engine, Tell, encoding, task
from tensordiff.capture.engines.max.ops import OpsListener
from tensordiff.capture.engines.max.pipeline import Wish, devices
from tensordiff.capture.engines.max.places import Given
from tensordiff.capture.engines.max.single_layer import UnitListener, alone
from tensordiff.capture.engines.max.tokens import Tokens, tokens
from tensordiff.capture.engines.max.writing import Selection, write_steps
from tensordiff.capture.events import Done, Note, Phase
from tensordiff.capture.job import Job
from tensordiff.capture.process.answer import first_facts
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import open_dump
from tensordiff.dump.writer import DumpWriter
from tensordiff.errors import CaptureError, printable

REPLAY = "replay"


def run(job: Job, tell: Tell) -> Done:
    """Run a ``max:`` job."""
    patches.check_version()
    _refuse(job)
    if job.task == REPLAY:
        job = _replaying(job)
    for note in _unheard(job.settings):
        tell(Note(note))
    tell(Phase("loading", job.source.target))
    with ExitStack() as held:
        found = checkpoint(job.source.target, job.settings, held)
        return _run(job, found, tell)


def _replaying(job: Job) -> Job:
    """A replay is an injected run of one layer, on what the dump to be replayed recorded."""
    if job.more.get("bundle") is not None:
        raise CaptureError(f"{printable(job.source)}: a layer of MAX cannot be exported; leave --bundle out")
    if int(job.more.get("step", 0)):
        raise CaptureError(f"{printable(job.source)}: a later step needs the cache of all layers; replay step 0")
    inject = job.settings.inject or Injection(str(job.more["dump"]))
    return replace(job, settings=replace(job.settings, inject=inject, steps=1))


def _run(job: Job, found: Checkpoint, tell: Tell) -> Done:
    settings = job.settings
    reference = open_dump(Path(settings.inject.dump)) if settings.inject else None
    asked = tokens(found.folder, settings, reference)
    for note in asked.notes:
        tell(Note(note))
    with _engine(job, _wish(found, settings, asked), tell) as engine, _writer(job) as writer:
        tell(Phase("running", f"{settings.steps} step{'s' if settings.steps > 1 else ''}"))
        steps = list(engine.steps(asked.ids, settings.steps, asked.following))
        injected = _injected(engine, settings, asked, steps, tell)
        seen = injected.steps if injected else steps
        count = write_steps(writer, seen, _selection(engine, settings), injected, tell)
        writer.add_facts(**_facts(job, found, asked, engine, injected))
    return Done(job.output, count, _told(engine, injected))


def _told(engine: Engine, injected: Injected | None) -> dict[str, Any]:
    """Of a layer alone, which one of the reference it answers."""
    if injected is None or not isinstance(engine.listener, UnitListener):
        return {}
    return {"layer": injected.answered(engine.listener.layer), "notes": [injected.sentence()]}


def _engine(job: Job, wish: Wish, tell: Tell) -> Engine:
    """What to build: the model, with a layer's operations where asked, or one layer of it."""
    if job.task == REPLAY:
        return alone(wish, str(job.more["layer"]), tell)
    return Engine(wish, tell, OpsListener(job.settings.ops) if job.settings.ops is not None else None)


def _selection(engine: Engine, settings: Settings) -> Selection:
    if not isinstance(engine.listener, OpsListener):
        return Selection.of(settings)
    return replace(Selection.of(settings), layers=re.compile(rf"{re.escape(engine.listener.layer)}(/|$)"))


def _injected(engine: Engine, settings: Settings, asked: Tokens, plain: Sequence[Noted], tell: Tell) -> Injected | None:
    if settings.inject is None:
        return None
    tell(Phase("injecting", settings.inject.at))
    following = asked.following or engine.pipeline.chosen

    def again(given: Mapping[int, Given]) -> Iterator[Noted]:
        return engine.steps(asked.ids, settings.steps, following, given)

    injected = injected_run(settings.inject, plain, engine.listener.inlets(), again)
    tell(Note(injected.sentence()))
    return injected


def _wish(found: Checkpoint, settings: Settings, asked: Tokens) -> Wish:
    length = found.length_for(len(asked.ids) + settings.steps)
    where, kind = devices(settings.device), encoding(settings.dtype, found)
    is_short = settings.num_hidden_layers is not None
    return Wish(found.folder, kind, where, length, task(found), settings.prefer_module_v3, is_short)


def _writer(job: Job) -> DumpWriter:
    return DumpWriter(job.output, first_facts(job, "max"), overwrite=job.settings.force)


def _facts(job: Job, found: Checkpoint, asked: Tokens, engine: Engine, injected: Injected | None) -> dict[str, Any]:
    inject = job.settings.inject
    return {
        "versions": {name: version(name) for name in ("max", "transformers")} | {"python": platform.python_version()},
        "device": ", ".join(_named(engine.wish.devices)),
        "dtype": engine.wish.encoding,
        "prompt": asked.prompt,
        "token_ids": list(asked.ids),
        "config_overrides": overrides_of(job.settings),
        "flags": {"return_logits": "all", "subgraphs": False, "modules": _modules(engine)},
        "model": {"class": found.architecture},
        "weights_hash": found.weights_hash(),
        "injection": None if injected is None or inject is None else injected.as_json(inject),
    }


def _named(specs: Sequence[Any]) -> list[str]:
    return [spec.device_type if spec.device_type == "cpu" else f"{spec.device_type}:{spec.id}" for spec in specs]


def _modules(engine: Engine) -> str:
    return "max.experimental.nn" if engine.wish.new_modules else "max.nn"


def _unheard(settings: Settings) -> Iterator[str]:
    """What is said for both sides and means something to one."""
    if settings.attn_implementation is not None:
        yield "--attn-implementation says nothing to MAX, which has one attention for a device"
    if settings.deterministic:
        yield "--deterministic says nothing to MAX, which has no such switch"


def _refuse(job: Job) -> None:
    """Settings that MAX cannot honour."""
    settings = job.settings
    given = {
        "--inputs": settings.inputs, "--image": settings.image, "--weights-dtype": settings.weights_dtype,
    }  # fmt: skip
    if named := [option for option, value in given.items() if value is not None]:
        raise CaptureError(f"{printable(job.source)}: {named[0]} is not for max: sources; leave it out")
