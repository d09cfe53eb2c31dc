"""Facts of an ONNX run: versions, who exported the model, flags that change numbers, a hash of the weights."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections import Counter
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from tensordiff.capture.devices import card_model, driver_version
from tensordiff.capture.engines.onnx.layers import Call
from tensordiff.capture.engines.onnx.model import Model, external, is_outside
from tensordiff.capture.engines.onnx.session import CUDA, GraphRunner

_HASHED = 1 << 20  # bytes of weights that are hashed whole; of more, the beginning of each


def versions() -> dict[str, str]:
    """The versions of everything that may change a number."""
    return {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__, "python": platform.python_version()}


def flags(runner: GraphRunner, *, is_optimized: bool) -> dict[str, Any]:
    """The flags that may change a number."""
    return {
        "providers": [name for name, _ in runner.placed.providers],
        "provider_options": {name: dict(said) for name, said in runner.placed.providers if said},
        "graph_optimizations": "extended" if is_optimized else "off",
        "deterministic_compute": runner.deterministic,
    } | _tf32(runner)


def _tf32(runner: GraphRunner) -> dict[str, bool]:
    """Whether float32 may be computed in TF32: onnxruntime's CUDA provider does so unless told otherwise.

    Taken from its documentation ("use_tf32: 1 by default"); the tests run on machines without a CUDA provider.
    """
    said = next((options for name, options in runner.placed.providers if name == CUDA), None)
    if said is None:
        return {}
    may = said.get("use_tf32", "1") != "0" and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    return {"tf32_matmul": may, "tf32_cudnn": may}


def about_gpu(runner: GraphRunner) -> dict[str, Any]:
    """The card that a graph ran on, as far as it is known, its driver and CUDA; empty on the CPU.

    onnxruntime reports no cards. ``cuda_version`` of its GPU packages is used as its capi/onnxruntime_validation.py
    does; the tests run on machines without such a package.
    """
    if runner.placed.device == "cpu":
        return {}
    software = {"cuda": getattr(onnxruntime, "cuda_version", None) or None, "driver": driver_version()}
    card = {"device": runner.placed.device, "vendor": "NVIDIA"} | ({"name": model} if (model := card_model()) else {})
    return {"accelerators": [card], "accelerator_software": {name: said for name, said in software.items() if said}}


def about_model(model: Model, root: Call) -> dict[str, Any]:
    """Who made the model, and how large it is."""
    rest = model.rest
    opsets = {each.domain or "ai.onnx": each.version for each in rest.opset_import}
    return {
        "class": root.origin.module_class or rest.graph.name or None,
        "file": model.path.name,
        "producer": " ".join(filter(None, (rest.producer_name, rest.producer_version))) or None,
        "ir_version": rest.ir_version,
        "opset": opsets,
        "nodes": len(model.nodes),
        "parameters": sum(math.prod(each.dims) for each in model.weights),
    }


def dtype_of(model: Model) -> str:
    """The type of most of a model's weights."""
    sizes: Counter[int] = Counter()
    for weight in model.weights:
        sizes[weight.data_type] += math.prod(weight.dims)
    return tensor_dtype_to_np_dtype(max(sizes, key=lambda kind: sizes[kind])).name if sizes else "float32"


def weights_hash(model: Model) -> str:
    """One hash of all weights. Of large ones only the first part of each is hashed, and the hash says so."""
    weights = sorted(model.weights, key=lambda each: each.name)
    total = sum(map(_nbytes, weights))
    most = None if total <= _HASHED else max(_HASHED // max(len(weights), 1), 1 << 12)
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(f"{weight.name} {weight.data_type} {list(weight.dims)}\n".encode())
        digest.update(_some_bytes(model, weight, most))
    return f"{'sha256' if most is None else 'sha256-parts'}:{digest.hexdigest()}"


def _nbytes(weight: TensorProto) -> int:
    itemsize: int = tensor_dtype_to_np_dtype(weight.data_type).itemsize
    return int(math.prod(weight.dims)) * itemsize


def _some_bytes(model: Model, weight: TensorProto, most: int | None) -> bytes:
    """The first ``most`` bytes of a weight, or all. Weights in another file are not read any further."""
    if is_outside(weight):
        place = external(weight)
        length = int(place["length"]) if "length" in place else _nbytes(weight)
        with (model.folder / str(place["location"])).open("rb") as file:
            file.seek(int(place.get("offset", 0)))
            return file.read(length if most is None else min(length, most))
    if weight.HasField("raw_data"):
        return bytes(weight.raw_data[:most])
    return b"" if weight.data_type == TensorProto.STRING else to_array(weight).tobytes()[:most]
