"""A GGUF model as llama.cpp runs it, watched node by node.

llama.cpp asks before each node of a graph whether it should call back with the result. If every answer is yes, it
computes one node at a time: a layer's inputs can be read and replaced before its first node, its outputs after its
last. A first run only lists the nodes, to find out which nodes make a layer. It also fixes the tokens of later steps,
so that every pass runs on the same ones.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int32, c_size_t, c_void_p
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tensordiff.capture.engines.llamacpp.architectures import Architecture, architecture
from tensordiff.capture.engines.llamacpp.graph import DTYPES, F32, OPERATION, Graph, Input, LayerCall, Tensor
from tensordiff.capture.engines.llamacpp.library import PACKAGE, Batch, EvalCallback, Library, ModelParams, load_error
from tensordiff.capture.engines.llamacpp.overrides import overrides
from tensordiff.capture.engines.llamacpp.values import GEGLU, GELU, as_halves, as_pairs, gelu_output
from tensordiff.capture.process.eager import Watch
from tensordiff.capture.process.tokens import Tokens, refuse_out_of_range
from tensordiff.capture.quantization import quantization_facts
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Origin
from tensordiff.errors import CaptureError, printable
from tensordiff.weights.parameters import parameters_of

_LEAST_CONTEXT = 128
_HASHED = 1 << 20
_ROPE_LAYERS, _HEAD_NORMS = (".attn.q", ".attn.k"), (".attn.q_norm", ".attn.k_norm")
_ROPE_OPERATIONS, _ROPE_NODES = ("MUL_MAT", "ADD", "ROPE"), ("Qcur-", "Kcur-")


class LoadedModel:
    """A model in memory, and the metadata of its file."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.config, self.library = path, config, Library()
        function = self.library.function
        params = self.library.model_params()
        given = overrides(self.library, path, config)
        params.kv_overrides, params.n_gpu_layers = given, 0
        load = function("llama_model_load_from_file", c_void_p, c_char_p, ModelParams)
        self.address: int = load(os.fsencode(path), params)
        if not self.address:
            raise load_error(path, self.library, config)
        self.vocabulary: int = function("llama_model_get_vocab", c_void_p, c_void_p)(self.address)
        self.vocabulary_size: int = function("llama_vocab_n_tokens", c_int32, c_void_p)(self.vocabulary)

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata, as text; None if there is no such key."""
        room = c.create_string_buffer(4096)
        found = self.library.function("llama_model_meta_val_str", c_int32, c_void_p, c_char_p, c_char_p, c_size_t)
        size = found(self.address, key.encode(), room, len(room))
        return None if size < 0 else room.value.decode(errors="replace")

    @property
    def architecture(self) -> str:
        """The architecture's name in GGUF files, such as ``llama`` or ``qwen3``."""
        return self.metadata("general.architecture") or "unknown"

    @property
    def head_size(self) -> int:
        """The number of elements of one head's query."""
        said = self.metadata(f"{self.architecture}.attention.key_length")
        if said is not None:
            return int(said)
        count = self.library.function("llama_model_n_head", c_int32, c_void_p)(self.address)
        width = self.library.function("llama_model_n_embd", c_int32, c_void_p)(self.address)
        return int(width) // max(int(count), 1)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a text with the file's own vocabulary."""
        if self.metadata("tokenizer.ggml.model") in (None, "none", "no_vocab"):
            raise CaptureError(f"{printable(self.path)}: has no vocabulary; give --input-ids 1,2,3")
        data = text.encode()
        room = (c_int32 * (len(data) + 8))()
        tokenize = self.library.function(
            "llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c.c_bool, c.c_bool
        )
        count = tokenize(self.vocabulary, data, len(data), room, len(room), True, False)
        if count < 0:
            raise CaptureError(
                f"{printable(self.path)}: its vocabulary cannot encode the prompt; give --input-ids 1,2,3"
            )
        return tuple(room[:count])

    def weights_hash(self) -> str:
        """A hash of the file: its size, and a piece of every hundredth of it."""
        size = self.path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with self.path.open("rb") as file:
            for start in range(0, size, max(_HASHED, size // 100)):
                file.seek(start)
                digest.update(file.read(_HASHED))
        return digest.hexdigest()


class GgufModel:
    """A loaded model and the tokens it is run on; every run gives the same numbers."""

    framework = "llama.cpp"

    def __init__(self, loaded: LoadedModel, tokens: Tokens, steps: int) -> None:
        self.loaded, self.tokens, self.steps = loaded, tokens, steps
        self._library = loaded.library
        self._architecture = architecture(loaded.architecture)
        self._error: BaseException | None = None
        self._observer: _NodeLister | _NodeWatcher | None = None
        self._context = self._open(len(tokens.ids) + steps)
        self.following: list[int] = []
        self.graphs = [self._list_graph(ids, at) for ids, at in self._inputs()]

    def layers(self) -> list[str]:
        """The names of all layers, in execution order."""
        return list(dict.fromkeys(call.layer for graph in self.graphs for call in graph.calls))

    def run(self, watch: Watch, calls: Callable[[int], Sequence[LayerCall]] | None = None) -> None:
        """Run all steps from the beginning.

        ``calls`` returns the calls to watch in a step; by default all are watched.
        """
        self._clear()
        for step, (ids, at) in enumerate(self._inputs()):
            if step:
                watch.next_step()
            self._observer = _NodeWatcher(self, watch, self.graphs[step].calls if calls is None else calls(step), ids)
            self._decode(ids, at)
            self._observer.finish()

    def facts(self) -> Mapping[str, Any]:
        """The facts of the run for the manifest."""
        loaded = self.loaded
        return {
            "versions": {"llama.cpp": f"{PACKAGE} {version(PACKAGE)}", "python": platform.python_version()},
            "device": "cpu", "dtype": "float32", "prompt": self.tokens.prompt, "token_ids": list(self.tokens.ids),
            "decode_token_ids": self.following[: self.steps - 1], "config_overrides": dict(loaded.config),
            "flags": {
                "cache": "float32", "flash_attention": False, "gelu": "by its formula",
                "file_type": loaded.metadata("general.file_type"),
                "rope_order": "q and k are written in halves" if self._architecture.has_paired_rope else "halves",
            },
            "model": {"class": loaded.architecture, "file": loaded.path.name},
            "weights_hash": loaded.weights_hash(), **self._quantization(),
        }  # fmt: skip

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """The tensors of the file, under their names there."""
        return ((item.name, item.stored.read()) for item in parameters_of(open_dump(self.loaded.path)))

    def _quantization(self) -> dict[str, Any]:
        """The facts about quantized weights. ggml multiplies quantized blocks with each other, so the other operand is
        rounded to 8 bits first.
        """
        items = parameters_of(open_dump(self.loaded.path))
        quantized = {item.name: item.quantization for item in items if item.quantization is not None}
        return quantization_facts(quantized, rounds_activations=True)

    # --- running ---------------------------------------------------------------------------------

    def _open(self, length: int) -> int:
        params = self._library.context_params()
        # a reference is kept because it is called for as long as the context lives
        self._callback = EvalCallback(self._on_node)
        params.cb_eval, params.type_k, params.type_v, params.flash_attn_type = self._callback, F32, F32, 0
        params.n_ctx = params.n_batch = params.n_ubatch = max(length, _LEAST_CONTEXT)
        params.n_threads = params.n_threads_batch = max((os.cpu_count() or 2) // 2, 1)
        make = self._library.function("llama_init_from_model", c_void_p, c_void_p, type(params))
        context: int = make(self.loaded.address, params)
        if not context:
            raise CaptureError(f"llamacpp:{printable(self.loaded.path)}: llama.cpp has no memory for {length} tokens")
        return context

    def _inputs(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """The tokens of each step, and the position of the first one."""
        at = 0
        ids = self.tokens.ids
        for step in range(self.steps):
            yield ids, at
            at += len(ids)
            ids = (self.following[step],) if step + 1 < self.steps else ()

    def _list_graph(self, ids: tuple[int, ...], at: int) -> Graph:
        """Run a step, list its nodes, and fix the token of the next step."""
        self._observer = _NodeLister(self._library)
        self._decode(ids, at)
        step = len(self.following)
        given = self.tokens.following
        self.following.append(given[step] if step < len(given) else self._likeliest(len(ids) - 1))
        return self._observer.graph(self._architecture)

    def _decode(self, ids: Sequence[int], at: int) -> None:
        refuse_out_of_range(ids, self.loaded.vocabulary_size)
        count = len(ids)
        numbers = c_int32 * count
        same = (POINTER(c_int32) * count)(*[c.pointer(c_int32(0))] * count)
        batch = Batch(
            count, numbers(*ids), None, numbers(*range(at, at + count)), numbers(*[1] * count), same,
            (c.c_int8 * count)(*[1] * count),
        )  # fmt: skip
        self._error = None
        status = self._library.function("llama_decode", c_int32, c_void_p, Batch)(self._context, batch)
        if self._error is not None:
            raise self._error
        if status != 0:
            raise CaptureError(f"llamacpp:{printable(self.loaded.path)}: llama.cpp could not run it (status {status})")

    def _likeliest(self, position: int) -> int:
        logits = self._library.function("llama_get_logits_ith", POINTER(c_float), c_void_p, c_int32)
        values = np.ctypeslib.as_array(logits(self._context, position), (self.loaded.vocabulary_size,))
        return int(values.argmax())

    def _clear(self) -> None:
        memory = self._library.function("llama_get_memory", c_void_p, c_void_p)(self._context)
        self._library.function("llama_memory_clear", None, c_void_p, c.c_bool)(memory, True)

    def _on_node(self, address: int, is_asking: bool, _: int | None) -> bool:
        """The callback for llama.cpp.

        An exception cannot pass through llama.cpp, so it is raised after the call returns.
        """
        if self._error is not None or self._observer is None:
            return False
        try:
            return self._observer.see(address, is_asking=is_asking)
        except BaseException as error:  # raised again in _decode
            self._error = error
            return False

    # --- values ----------------------------------------------------------------------------------

    def read(self, layer: str, tensor: Tensor, *, is_input: bool = False) -> Array:
        """A tensor's values in the layout of a dump."""
        values = self._library.read(tensor)
        if self._is_heads_first(layer, values):
            return values.swapaxes(0, 1)
        is_paired = self._is_paired(layer, tensor, is_input=is_input)
        return as_halves(values, self.loaded.head_size) if is_paired else values

    def write(self, layer: str, tensor: Tensor, values: Array, *, is_input: bool = False) -> None:
        """Overwrite a tensor with values in the layout of a dump."""
        if self._is_heads_first(layer, values):
            values = values.swapaxes(0, 1)
        elif self._is_paired(layer, tensor, is_input=is_input):
            values = as_pairs(values, self.loaded.head_size)
        self._library.write(tensor, values)

    def _is_paired(self, layer: str, tensor: Tensor, *, is_input: bool) -> bool:
        """Whether a tensor holds rope's pairs interleaved, where Hugging Face has them in two halves."""
        if is_input or not self._architecture.has_paired_rope:
            return False
        if OPERATION in layer:
            return tensor.op in _ROPE_OPERATIONS and tensor.name.startswith(_ROPE_NODES)
        return layer.endswith(_ROPE_LAYERS)

    def _is_heads_first(self, layer: str, values: Array) -> bool:
        return self._architecture.has_heads_first and layer.endswith(_HEAD_NORMS) and values.ndim == 3


class _NodeLister:
    """Lists the nodes of a graph while it runs."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._nodes: list[Tensor] = []

    def see(self, address: int, *, is_asking: bool) -> bool:
        if is_asking:
            self._nodes.append(self._library.tensor(address))
        return False

    def graph(self, kind: Architecture) -> Graph:
        """The graph that was listed."""
        made = {node.address for node in self._nodes}
        read = {address for node in self._nodes for address in node.sources} - made
        return Graph(self._nodes, {address: self._library.tensor(address) for address in read}, kind)


class _NodeWatcher:
    """Reports the calls in a graph to a watch."""

    def __init__(self, model: GgufModel, watch: Watch, calls: Sequence[LayerCall], ids: Sequence[int]) -> None:
        self._model, self._watch, self._ids = model, watch, ids
        self._library = model.loaded.library
        self._begins: dict[int, list[LayerCall]] = defaultdict(list)
        self._ends: dict[int, list[LayerCall]] = defaultdict(list)
        for call in calls:
            self._begins[call.first].append(call)
            self._ends[call.last].insert(0, call)
        self._node = 0
        self._replaced: dict[LayerCall, list[tuple[Tensor, Array]]] = defaultdict(list)
        self._gelu: Array | None = None

    def see(self, address: int, *, is_asking: bool) -> bool:
        """Handle a node that is about to be computed (``is_asking``) or has been."""
        node = self._library.tensor(address)
        if is_asking:
            for call in self._begins[self._node]:
                self._begin(call, node)
            self._gelu = self._recomputed(node)
        else:
            if self._gelu is not None:
                self._library.write(node, self._gelu)
            for call in self._ends[self._node]:
                self._end(call, node)
            self._node += 1
        return True

    def finish(self) -> None:
        """Refuse a graph that had other nodes than when it was listed."""
        if any(number >= self._node for number in self._ends):
            raise CaptureError("llama.cpp ran another graph than it listed before; this is a defect of tensordiff")

    def _begin(self, call: LayerCall, node: Tensor) -> None:
        origin = Origin(call.kind)
        if call.is_root:
            self._watch.inputs(call.layer, {"input_input_ids": np.array([self._ids], np.int64)}, origin)
            return
        tensors = {one.port: self._source(one, node) for one in call.inputs}
        own = {port: self._model.read(call.layer, tensor, is_input=True) for port, tensor in tensors.items()}
        given = self._watch.inputs(call.layer, own, origin)
        for one in call.inputs:
            values = given[one.port]
            if values is not own[one.port]:
                if one.is_restored:
                    self._replaced[call].append((tensors[one.port], own[one.port]))
                self._model.write(call.layer, tensors[one.port], values, is_input=True)

    def _source(self, one: Input, node: Tensor) -> Tensor:
        return self._library.tensor(node.sources[one.source])

    def _end(self, call: LayerCall, node: Tensor) -> None:
        if node.kind not in DTYPES:
            raise CaptureError(f"{node.name}: is of a type that dumps do not have")
        own = self._model.read(call.layer, node)
        values = self._watch.outputs(call.layer, {call.output: own})[call.output]
        if values is not own:
            self._model.write(call.layer, node, values)
        for tensor, before in reversed(self._replaced.pop(call, [])):
            self._model.write(call.layer, tensor, before, is_input=True)

    def _recomputed(self, node: Tensor) -> Array | None:
        """The exact output of a node that ggml looks up in a table.

        It is computed from the sources beforehand, because the node may overwrite them.
        """
        if node.op not in (GELU, GEGLU) or node.kind != F32:
            return None
        sources = [self._library.read(self._library.tensor(address)) for address in node.sources]
        return gelu_output(node.op, sources, is_swapped=node.is_swapped)


class OperationsModel:
    """One layer of a model, and every node within it."""

    framework = GgufModel.framework

    def __init__(self, model: GgufModel, layer: str) -> None:
        self._model, self.layer = model, layer
        self.facts = model.facts

    def layers(self) -> list[str]:
        """The layer and its nodes."""
        return list(dict.fromkeys(call.layer for step in range(self._model.steps) for call in self._calls(step)))

    def run(self, watch: Watch) -> None:
        """Run all steps from the beginning, watching the layer's nodes."""
        self._model.run(watch, self._calls)

    def _calls(self, step: int) -> Sequence[LayerCall]:
        graph = self._model.graphs[step]
        of_layer = [call for call in graph.calls if call.layer == self.layer]
        return [one for call in of_layer for one in (call, *graph.operations(call))]
