"""A compiled MAX pipeline on its devices, run token by token without server, sampler or command line.

``Pipeline`` owns its inference session and its cache and asks for the logits of all positions. It never lets MAX share
one traced body between layers, because each layer must be told apart. The meaning of ``--device`` for MAX is decided
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from max.driver import DeviceSpec, accelerator_api, accelerator_count, load_devices
from max.engine import InferenceSession
from max.graph.weights import load_weights, weights_format
from max.nn import ReturnLogits
from max.pipelines import PIPELINE_REGISTRY
from max.pipelines.context import TextContext, TokenBuffer
from max.pipelines.kv_cache import load_kv_manager
from max.pipelines.lib import PipelineArgs, PipelineConfig
from max.pipelines.lib.pipeline_runtime_config import PipelineRuntimeConfig
from max.pipelines.modeling.types import PipelineTask, RequestID

from tensordiff.capture.devices import check_gpu_numbers, parse_device
from tensordiff.capture.engines.max.buffers import from_buffer
from tensordiff.dump.dtypes import Array
from tensordiff.errors import CaptureError, printable


def devices(text: str) -> tuple[DeviceSpec, ...]:
    """The devices that ``--device`` means to MAX; ``device_map=auto`` means all GPUs."""
    choice, count = parse_device(text), accelerator_count()
    if choice.kind == "cpu" or (choice.kind in ("auto", "map") and not count):
        return (DeviceSpec.cpu(),)
    check_gpu_numbers(text, choice, count)
    if choice.kind in ("cuda", "mps") and accelerator_api() not in _APIS[choice.kind]:
        raise CaptureError(
            f"--device {printable(text)}: the GPUs that MAX finds here are reached by {accelerator_api()}; "
            "give gpu, or gpu:1"
        )
    wanted = range(count) if choice.kind == "map" else choice.numbers or (0,)
    return tuple(DeviceSpec.accelerator(each) for each in wanted)


_APIS = {"cuda": ("cuda", "hip"), "mps": ("metal",)}
"""MAX's names for what torch calls cuda and mps; torch calls AMD's GPUs cuda, too."""


_CACHE_BYTES = 64 << 20
"""Memory for the keys and values of one short prompt, if MAX planned none."""


@dataclass(frozen=True)
class ModelOptions:
    """What to build."""

    folder: Path
    encoding: str
    devices: tuple[DeviceSpec, ...]
    length: int
    """Tokens that must fit: the prompt and the steps after it."""
    task: PipelineTask = PipelineTask.TEXT_GENERATION
    new_modules: bool = False
    """Prefer the architecture written in ``max.experimental.nn``."""
    is_short: bool = False
    """Whether the checkpoint has more layers than the model is to have."""
    keeps_weights: bool = False
    """Whether its weights are to be written."""


class Pipeline:
    """A compiled model and its cache."""

    def __init__(self, options: ModelOptions) -> None:
        self.task = options.task
        self._length = options.length
        self.config = PipelineConfig.from_args(_args(options))
        found = PIPELINE_REGISTRY.retrieve_factory(self.config, self.task)
        self._parts, self._plan = found.factory.keywords, found.memory_plan
        self.devices = load_devices(list(self._plan.require_device_specs()))
        self.session = InferenceSession(devices=[*self.devices])
        self.model = self._model()
        self.cache = self._cache()
        self.chosen: tuple[int, ...] = ()
        """The tokens that the steps of the last run continued with."""

    def _model(self) -> Any:
        files = self.config.model.resolved_weight_paths()
        return self._parts["pipeline_model"](
            pipeline_config=self.config,
            session=self.session,
            devices=self.devices,
            kv_cache_config=self.config.model.kv_cache,
            weights=load_weights(files),
            adapter=self._parts["weight_adapters"].get(weights_format(files)),
            return_logits=ReturnLogits.ALL,
            max_batch_size=self._plan.planned_max_batch_size,
            memory_plan=self._plan,
        )

    def _cache(self) -> Any:
        if self.task != PipelineTask.TEXT_GENERATION:
            return None
        return load_kv_manager(
            params=self.model.kv_params,
            max_batch_size=self._plan.planned_max_batch_size,
            max_seq_len=self.model.max_seq_len,
            session=self.session,
            available_cache_memory=max(self._plan.available_cache_memory or 0, _CACHE_BYTES),
            is_di_enabled=False,
            model_name=self.config.model.model_name,
            max_num_input_tokens=self._length,
        )

    def steps(self, ids: Sequence[int], count: int, following: Sequence[int] = ()) -> Iterator[int]:
        """Run the prompt and then one token a step; yields the number of each step after it ran.

        The next token is taken from ``following``; after its end it is the most likely one.
        """
        context = TextContext(
            request_id=RequestID(), max_length=self._length, tokens=TokenBuffer(np.asarray(ids, dtype=np.int64))
        )
        if self.cache is None:
            self.model.execute(model_inputs=self.model.prepare_initial_token_inputs([[context]]))
            yield 0
            return
        self.cache.claim(context, replica_idx=0)
        try:
            for step in range(count):
                logits = self._forward(context)
                yield step
                token = following[step] if step < len(following) else int(np.argmax(logits[-1]))
                self.chosen = (*self.chosen[:step], token)
                context.update(token)
                self.cache.step(context)
        finally:
            self.cache.release(context)

    def _forward(self, context: TextContext) -> Array:
        self.cache.alloc(context)
        inputs = self.model.prepare_initial_token_inputs(
            replica_batches=[[context]], kv_cache_inputs=self.cache.runtime_inputs([[context]])
        )
        return from_buffer(self.model.execute(model_inputs=inputs).logits)


def _args(options: ModelOptions) -> PipelineArgs:
    # One prompt: on a GPU MAX plans for 512 (max/pipelines/lib/memory_estimation.py), and allocates the cache for all
    # of them.
    runtime = PipelineRuntimeConfig(max_batch_size=1, prefer_module_v3=options.new_modules)
    return PipelineArgs(
        model_path=str(options.folder),
        device_specs=list(options.devices),
        task=options.task,
        quantization_encoding=options.encoding,
        max_length=options.length,
        use_subgraphs=False,
        runtime=runtime,
    )
