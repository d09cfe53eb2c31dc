"""A model of mlx-lm, watched call by call.

MLX has no hooks. So the class of every module is replaced by a subclass with a watched ``__call__``; everything else
stays the same. A module that several others share is one module, named after the first that holds it.

mlx-lm's Gemmas scale the result of their embedding, which transformers scales inside it: ``embed_tokens`` is reported
scaled. A model without a head of its own multiplies with its embedding, by ``as_linear``: that is reported as
``lm_head``.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from tensordiff.capture.engines.mlx.arrays import find_arrays, replace_arrays, to_mlx, to_numpy
from tensordiff.capture.process.eager import Watch
from tensordiff.capture.process.layers import ROOT
from tensordiff.capture.process.tokens import Tokens, refuse_out_of_range
from tensordiff.capture.quantization import quantization_facts
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Origin
from tensordiff.errors import CaptureError
from tensordiff.weights.quantization import Quantization

_ROOT_INPUT, _ROOT_OUTPUT = "input_input_ids", "output_logits"
_HEAD, _AS_HEAD = f"{ROOT}.lm_head", "as_linear"
_POSITIONS = ("wpe", "position_embeddings", "embed_positions")
"""Names of tables of positions; all other tables are of tokens."""
_SCALING = {
    "mlx_lm.models.gemma": lambda width: width**0.5,
    "mlx_lm.models.gemma2": lambda width: width**0.5,
    "mlx_lm.models.gemma3_text": lambda width: mx.array(width**0.5, mx.bfloat16).item(),
}
"""Modules of mlx-lm whose models scale their embedding, and the factor for a width, rounded as there."""


class WatchedModules:
    """The modules of a model, each of which tells a watch when it is called."""

    def __init__(self, model: nn.Module) -> None:
        self.watch: Watch | None = None
        self.names: dict[str, nn.Module] = {}
        named = {"": model} | dict(model.named_modules())
        self._factors = {id(module.embed_tokens): factor for module in named.values() if (factor := _factor(module))}
        self._is_tied = not any(name.endswith("lm_head") for name in named)
        seen: set[int] = set()
        for name in sorted(named, key=lambda name: (name.count("."), name)):
            module = named[name]
            if id(module) not in seen and callable(type(module).__call__):
                seen.add(id(module))
                self._attach(f"{ROOT}.{name}" if name else ROOT, module)

    def _attach(self, layer: str, module: nn.Module) -> None:
        self.names[layer] = module
        kind = type(module)
        call = self._watched(layer, kind, kind.__call__, self._factors.get(id(module)))
        watched = {"__call__": call, "__module__": kind.__module__, "__doc__": kind.__doc__}
        if self._is_tied and hasattr(kind, _AS_HEAD):
            self.names[_HEAD] = module
            watched[_AS_HEAD] = self._watched(_HEAD, kind, getattr(kind, _AS_HEAD))
        module.__class__ = type(kind.__name__, (kind,), watched)

    def _watched(
        self, layer: str, kind: type[nn.Module], call: Callable[..., Any], factor: float | None = None
    ) -> Callable[..., Any]:
        origin = _origin(kind)

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.watch is None:
                return call(module, *args, **kwargs)
            args, kwargs = _watch_inputs(self.watch, layer, origin, args, kwargs)
            _refuse_rows_outside(layer, module, args)
            given = call(module, *args, **kwargs)
            if factor is None:
                return _watch_outputs(self.watch, layer, given)
            scaled = given * factor
            seen = _watch_outputs(self.watch, layer, scaled)
            return given if seen is scaled else seen / factor

        return watched


def _refuse_rows_outside(layer: str, module: nn.Module, args: Sequence[Any]) -> None:
    """Refuse rows that a table does not have: MLX would read whatever is in memory there."""
    is_table = isinstance(module, nn.Embedding | nn.QuantizedEmbedding) and args and isinstance(args[0], mx.array)
    if is_table and mx.issubdtype(args[0].dtype, mx.integer):
        what = "position" if layer.endswith(_POSITIONS) else "token"
        refuse_out_of_range(args[0].reshape(-1).tolist(), module.weight.shape[0], what)


def _factor(module: nn.Module) -> float | None:
    """The factor that the model multiplies its embedding with; None if there is none."""
    scaling = _SCALING.get(type(module).__module__)
    return scaling(module.args.hidden_size) if scaling is not None and hasattr(module, "embed_tokens") else None


def _watch_inputs(
    watch: Watch, layer: str, origin: Origin, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    ports = {port: array for number, value in enumerate(args) for port, array in find_arrays(value, f"input_{number}")}
    for name, value in kwargs.items():
        ports |= dict(find_arrays(value, f"input_{name}"))
    new = _show(
        lambda arrays: watch.inputs(layer, arrays, origin), ports, {"input_0": _ROOT_INPUT} if layer == ROOT else {}
    )
    if not new:
        return args, kwargs
    return (
        tuple(replace_arrays(value, f"input_{number}", new) for number, value in enumerate(args)),
        {name: replace_arrays(value, f"input_{name}", new) for name, value in kwargs.items()},
    )


def _watch_outputs(watch: Watch, layer: str, given: Any) -> Any:
    ports = dict(find_arrays(given, "output"))
    new = _show(lambda arrays: watch.outputs(layer, arrays), ports, {"output": _ROOT_OUTPUT} if layer == ROOT else {})
    return replace_arrays(given, "output", new) if new else given


def _show(
    see: Callable[[dict[str, Array]], dict[str, Array]], ports: Mapping[str, mx.array], renamed: Mapping[str, str]
) -> dict[str, mx.array]:
    """Show arrays to a watch; returns those that it replaces, by port."""
    own = {renamed.get(port, port): to_numpy(array) for port, array in ports.items()}
    given = see(own)
    back = {renamed.get(port, port): port for port in ports}
    return {back[port]: to_mlx(array) for port, array in given.items() if array is not own[port]}


def _origin(kind: type) -> Origin:
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return Origin(kind.__name__)
    return Origin(kind.__name__, file, line)


class MlxModel:
    """A loaded model and the tokens it is run on; every run gives the same numbers."""

    framework = "mlx"

    def __init__(self, model: nn.Module, tokens: Tokens, steps: int, run_facts: Mapping[str, Any]) -> None:
        self._model, self._tokens, self._steps, self._run_facts = model, tokens, steps, run_facts
        self.modules = WatchedModules(model)
        self.following = list(tokens.following)

    def layers(self) -> list[str]:
        """The names of all modules."""
        return list(self.modules.names)

    def run(self, watch: Watch) -> None:
        """Run all steps from the beginning. The first run fixes the tokens of later steps."""
        cache, ids = make_prompt_cache(self._model), self._tokens.ids
        try:
            for step in range(self._steps):
                if step:
                    watch.next_step()
                self.modules.watch = watch
                logits = self._model(mx.array([ids]), cache=cache)
                self.modules.watch = None
                if step + 1 < self._steps:
                    ids = (self._next(step, logits),)
        finally:
            self.modules.watch = None

    def _next(self, step: int, logits: Any) -> int:
        if step == len(self.following):
            if not isinstance(logits, mx.array) or logits.ndim != 3:
                raise CaptureError(
                    f"--steps: {type(self._model).__name__} gives no logits to go on from; capture one step"
                )
            self.following.append(int(mx.argmax(logits[0, -1]).item()))
        return self.following[step]

    def facts(self) -> Mapping[str, Any]:
        """The facts of the run for the manifest."""
        versions = {name: version(name) for name in ("mlx", "mlx-lm")} | {"python": platform.python_version()}
        return {
            "versions": versions, "prompt": self._tokens.prompt, "token_ids": list(self._tokens.ids),
            "decode_token_ids": self.following[: self._steps - 1], "flags": {}, **self._run_facts,
            **self._quantization(),
        }  # fmt: skip

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """The model's parameters; quantized weights are dequantized."""
        quantized = dict(self._quantized())
        for name, array in tree_flatten(self._model.parameters()):
            stem, _, kind = name.rpartition(".")
            module = quantized.get(stem)
            if module is None or kind == "bias":
                yield name, to_numpy(array)
            elif kind == "weight":
                yield name, to_numpy(_dequantized(module))

    def _quantized(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._model.named_modules():
            if "scales" in module and isinstance(getattr(module, "bits", None), int):
                yield name, module

    def _quantization(self) -> dict[str, Any]:
        kinds = {f"{name}.weight": (module.bits, module.group_size) for name, module in self._quantized()}
        named = {
            name: Quantization(f"MLX {bits} bits in groups of {group}", bits, group)
            for name, (bits, group) in kinds.items()
        }
        return quantization_facts(named, rounds_activations=False)


def _dequantized(module: Any) -> mx.array:
    return mx.dequantize(
        module["weight"], module["scales"], module.get("biases"), group_size=module.group_size, bits=module.bits,
        mode=getattr(module, "mode", "affine"),
    )  # fmt: skip
