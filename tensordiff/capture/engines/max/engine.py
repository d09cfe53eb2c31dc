"""``max:PATH_OR_ID``: a model run by Modular MAX.

One compiled graph serves a plain run and an injected one. The plain run comes first and shows which inputs can be
injected.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from max.driver import DeviceSpec, accelerator_api, accelerator_architecture_name

from tensordiff.capture.devices import driver_version
from tensordiff.capture.engines.hf.tokenizer import tokenizer
from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.buffers import write_parameters
from tensordiff.capture.engines.max.checkpoint import Checkpoint, open_checkpoint, overrides_of
from tensordiff.capture.engines.max.inject import run_injected
from tensordiff.capture.engines.max.model import CompiledModel, encoding, task
from tensordiff.capture.engines.max.ops import OpsListener
from tensordiff.capture.engines.max.pipeline import ModelOptions, devices
from tensordiff.capture.engines.max.single_layer import SingleLayerListener, single_layer_model
from tensordiff.capture.engines.max.sites import SiteValues, StepTensors
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.injection.report import InjectionReport
from tensordiff.capture.job import REPLAY, Job, replay_as_injection
from tensordiff.capture.process.disk_space import check_job_size
from tensordiff.capture.process.layers import Selection, leaves
from tensordiff.capture.process.output import Output, done, open_output
from tensordiff.capture.process.tokens import Tokens, choose_tokens
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import open_dump


def run(job: Job, tell: Tell) -> Done:
    """Run a ``max:`` job."""
    patches.check_version()
    if job.task == REPLAY:
        job = replay_as_injection(job)
    device_specs = devices(job.settings.device)
    for note in _unused_options(job.settings):
        tell(Note(note))
    tell(Phase("loading", job.source.target))
    with ExitStack() as stack:
        checkpoint = open_checkpoint(job.source.target, job.settings, stack)
        return _run(job, checkpoint, device_specs, tell)


def _run(job: Job, checkpoint: Checkpoint, device_specs: tuple[DeviceSpec, ...], tell: Tell) -> Done:
    settings = job.settings
    reference = open_dump(Path(settings.inject.dump)) if settings.inject else None
    tokens = choose_tokens(
        settings, reference, tokenizer(checkpoint.folder, trust_remote_code=settings.trust_remote_code)
    )
    for note in tokens.notes:
        tell(Note(note))
    with (
        _model(job, _options(checkpoint, settings, device_specs, tokens), tell) as engine,
        open_output(job, "max") as output,
    ):
        tell(Phase("running", f"{settings.steps} step{'s' if settings.steps > 1 else ''}"))
        steps: Sequence[StepTensors] = list(engine.steps(tokens.ids, settings.steps, tokens.following))
        output.facts |= _facts(job, checkpoint, tokens, engine)
        report = None
        if settings.inject is not None:
            steps, report = _inject(engine, settings.inject, settings.steps, tokens, steps, tell)
            output.facts["injection"] = report.as_json(settings.inject)
        _write(output, job, steps, _selection(engine, settings), report, tell)
        if engine.options.keeps_weights:
            tell(Phase("writing weights"))
            write_parameters(engine.weights, output)
        notes = [*([report.sentence()] if report else []), *output.budget.notes(), *engine.merger.notes()]
        output.facts["notes"] = notes or None
    return done(job, output, output.facts | _replayed(engine, report), tell)


def _replayed(engine: CompiledModel, report: InjectionReport | None) -> dict[str, Any]:
    """When a single layer is replayed: the name of the reference's layer it corresponds to."""
    if report is None or not isinstance(engine.listener, SingleLayerListener):
        return {}
    return {"layer": report.reference_layer(engine.listener.layer)}


def _model(job: Job, options: ModelOptions, tell: Tell) -> CompiledModel:
    """The model to build: the whole model, with the operations of a layer if asked, or one layer alone."""
    if job.task == REPLAY:
        return single_layer_model(options, str(job.more["layer"]), tell)
    return CompiledModel(options, tell, OpsListener(job.settings.ops) if job.settings.ops is not None else None)


def _selection(engine: CompiledModel, settings: Settings) -> Selection:
    if not isinstance(engine.listener, OpsListener):
        return Selection.from_settings(settings)
    return Selection.only(engine.listener.layer, within="(/.*)?", inputs=not settings.no_inputs)


def _inject(
    engine: CompiledModel, injection: Injection, count: int, tokens: Tokens, plain: Sequence[StepTensors], tell: Tell
) -> tuple[Sequence[StepTensors], InjectionReport]:
    """Run the model again on the reference's inputs. Later steps get the tokens of the plain run."""
    following = tokens.following or engine.pipeline.chosen

    def run(values: Mapping[int, SiteValues]) -> Iterator[StepTensors]:
        return engine.steps(tokens.ids, count, following, values)

    injected = run_injected(injection, plain, engine.listener.inputs(), run, tell)
    return injected.steps, injected.report


def _write(
    output: Output,
    job: Job,
    steps: Sequence[StepTensors],
    selection: Selection,
    report: InjectionReport | None,
    tell: Tell,
) -> None:
    """Write what was recorded, in order, step by step."""  # fmt: skip
    smallest = leaves(site.layer for tensors in steps for site, _ in tensors)
    wanted = [
        (site, step, array)
        for step, tensors in enumerate(steps)
        for site, array in tensors
        if selection.takes(site.layer, site.port, is_leaf=site.layer in smallest)
    ]
    check_job_size(job, sum(array.nbytes for _, _, array in wanted), tell)
    tell(Phase("writing"))
    for site, step, array in wanted:
        injected = None if report is None else report.names(site.call_key(step), site.port)
        output.add(site.key(step), array, site.origin._replace(injected=injected))


def _options(
    checkpoint: Checkpoint, settings: Settings, device_specs: tuple[DeviceSpec, ...], tokens: Tokens
) -> ModelOptions:
    length, kind = checkpoint.length_for(len(tokens.ids) + settings.steps), encoding(settings.dtype, checkpoint)
    is_short = settings.num_hidden_layers is not None
    keeps = settings.weights and settings.inject is None and settings.ops is None
    return ModelOptions(
        checkpoint.folder, kind, device_specs, length, task(checkpoint), settings.prefer_module_v3, is_short, keeps
    )


def _facts(job: Job, checkpoint: Checkpoint, tokens: Tokens, engine: CompiledModel) -> dict[str, Any]:
    return {
        "versions": {name: version(name) for name in ("max", "transformers")} | {"python": platform.python_version()},
        "device": ", ".join(_named(engine.options.devices)),
        "dtype": engine.options.encoding,
        "prompt": tokens.prompt,
        "token_ids": list(tokens.ids),
        "decode_token_ids": list(tokens.following or engine.pipeline.chosen)[: job.settings.steps - 1],
        "config_overrides": overrides_of(job.settings),
        "flags": {"return_logits": "all", "subgraphs": False, "modules": _modules(engine)},
        "model": {"class": checkpoint.architecture},
        "weights_hash": checkpoint.weights_hash(),
        **gpu_facts(engine.pipeline.devices),
    }


_VENDORS = {"cuda": "NVIDIA", "hip": "AMD", "metal": "Apple"}


def gpu_facts(loaded: Sequence[Any]) -> dict[str, Any]:
    """The GPUs that a model ran on, of any vendor, and their driver: kernels differ between them.

    ``model_name`` is used as max/_core/driver.pyi documents it; no GPU that MAX supports runs these tests. MAX reports
    no version of CUDA or ROCm: it brings its own kernels and needs only the driver.
    """
    gpus = [device for device in loaded if not device.is_host]
    if not gpus:
        return {}
    api, architecture = accelerator_api(), accelerator_architecture_name()
    about = {"vendor": _VENDORS.get(api, api), "architecture": architecture}
    cards = [{"device": f"gpu:{gpu.id}", "name": _model_name(gpu) or f"{api} {architecture}", **about} for gpu in gpus]
    driver = driver_version() if api == "cuda" else None
    return {"accelerators": cards} | ({"accelerator_software": {"driver": driver}} if driver else {})


def _model_name(gpu: Any) -> str | None:
    try:
        return str(gpu.model_name)
    except (AttributeError, ValueError):  # what MAX raises for a property that a device does not have
        return None


def _named(specs: Sequence[Any]) -> list[str]:
    return [spec.device_type if spec.device_type == "cpu" else f"{spec.device_type}:{spec.id}" for spec in specs]


def _modules(engine: CompiledModel) -> str:
    return "max.experimental.nn" if engine.options.new_modules else "max.nn"


def _unused_options(settings: Settings) -> Iterator[str]:
    """Notes about options that are given for both sides and have no effect on MAX."""
    if settings.attn_implementation is not None:
        yield "--attn-implementation says nothing to MAX, which has one attention for a device"
    if settings.deterministic:
        yield "--deterministic says nothing to MAX, which has no such switch"
