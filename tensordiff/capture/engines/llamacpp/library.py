"""llama.cpp through ctypes: the few functions and structures of the library in the package xllamacpp that a capture
needs.

The structures are those of one version of llama.cpp's headers. Another version of the library may lay them out
differently, which would read as garbage; so known default values are checked first.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_bool, c_char, c_char_p, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp

from tensordiff.capture.engines.llamacpp.graph import DTYPES, F16, Tensor
from tensordiff.capture.settings import config_hint
from tensordiff.dump.dtypes import Array
from tensordiff.errors import CaptureError, printable

PACKAGE = "xllamacpp"
_DIMENSIONS, _SOURCES, _NAME_BYTES, _KEY_BYTES = 4, 10, 64, 128
_PADDING = 128  # a newer version may have more fields at the end of what it returns by value

EvalCallback = c.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)
_LogCallback = c.CFUNCTYPE(None, c.c_int, c_char_p, c_void_p)
_ERROR = 4  # a level of llama.cpp's log


class KvOverride(c.Structure):
    """A replacement for a value of the file's metadata."""

    class Value(c.Union):
        """The value, by its type."""

        _fields_ = [("whole", c_int64), ("real", c.c_double), ("flag", c_bool), ("text", c_char * _KEY_BYTES)]

    _fields_ = [("tag", c_int32), ("key", c_char * _KEY_BYTES), ("value", Value)]


class ModelParams(c.Structure):
    """``llama_model_params``."""

    _fields_ = [
        ("devices", c_void_p), ("buffer_types", c_void_p), ("n_gpu_layers", c_int32), ("split_mode", c_int32),
        ("other_mode", c_int32), ("load_mode", c_int32), ("main_gpu", c_int32), ("tensor_split", c_void_p),
        ("progress", c_void_p), ("progress_data", c_void_p), ("kv_overrides", POINTER(KvOverride)),
        *((f"flag_{k}", c_bool) for k in range(6)), ("padding", c_char * _PADDING),
    ]  # fmt: skip


class ContextParams(c.Structure):
    """``llama_context_params``."""

    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max",
                                        "n_outputs_max_per_seq")),
        ("n_threads", c_int32), ("n_threads_batch", c_int32),
        *((name, c_int32) for name in ("ctx_type", "rope_scaling_type", "pooling_type", "attention_type",
                                       "flash_attn_type")),
        *((name, c_float) for name in ("rope_base", "rope_scale", "yarn_ext", "yarn_attn", "yarn_fast", "yarn_slow")),
        ("yarn_orig_ctx", c_uint32), ("defrag", c_float), ("cb_eval", EvalCallback), ("cb_data", c_void_p),
        ("type_k", c_int32), ("type_v", c_int32), ("abort", c_void_p), ("abort_data", c_void_p),
        ("before_flags", c_void_p), *((f"flag_{k}", c_bool) for k in range(6)), ("samplers", c_void_p),
        ("n_samplers", c_size_t), ("other", c_void_p), ("padding", c_char * _PADDING),
    ]  # fmt: skip


class Batch(c.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p), ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]  # fmt: skip


class _Tensor(c.Structure):
    """``ggml_tensor``."""

    _fields_ = [
        ("type", c_int32), ("buffer", c_void_p), ("ne", c_int64 * _DIMENSIONS), ("nb", c_size_t * _DIMENSIONS),
        ("op", c_int32), ("op_params", c_int32 * 16), ("flags", c_int32), ("src", c_void_p * _SOURCES),
        ("view_src", c_void_p), ("view_offs", c_size_t), ("data", c_void_p), ("name", c_char * _NAME_BYTES),
        ("extra", c_void_p),
    ]  # fmt: skip


class Library:
    """The functions of llama.cpp that are used here."""

    def __init__(self) -> None:
        files = sorted(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
        if not files:
            raise CaptureError(f"{PACKAGE} {version(PACKAGE)}: has no library of llama.cpp in it; install it again")
        self._library = c.CDLL(str(files[0]))
        self.first_error = ""
        """The first error in llama.cpp's log, which explains a failure."""
        # a reference is kept because the library calls it for as long as it lives
        self._log = _LogCallback(self._on_log)
        self.function("llama_log_set", None, _LogCallback, c_void_p)(self._log, None)
        self.function("llama_backend_init", None)()
        self._name = self.function("ggml_get_name", c_char_p, c_void_p)
        self._op = self.function("ggml_op_desc", c_char_p, c_void_p)
        self._nbytes = self.function("ggml_nbytes", c_size_t, c_void_p)
        self._elements = self.function("ggml_nelements", c_int64, c_void_p)
        self._get = self.function("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._set = self.function("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._check_layout()

    def _on_log(self, level: int, text: bytes | None, _: int | None) -> None:
        said = " ".join((text or b"").decode(errors="replace").split())
        if level == _ERROR and not self.first_error:
            self.first_error = said

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Look up a function by its name."""
        try:
            found = getattr(self._library, name)
        except AttributeError:
            raise _version_error(f"it has no {name}") from None
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def model_params(self) -> ModelParams:
        """The default parameters for loading a model."""
        return self.function("llama_model_default_params", ModelParams)()  # type: ignore[no-any-return]

    def context_params(self) -> ContextParams:
        """The default parameters for running a model."""
        return self.function("llama_context_default_params", ContextParams)()  # type: ignore[no-any-return]

    def _check_layout(self) -> None:
        context, model = self.context_params(), self.model_params()
        flags = tuple(getattr(context, f"flag_{k}") for k in range(6))
        if (context.type_k, context.type_v, flags) != (F16, F16, (False, True, True, True, True, False)):
            raise _version_error("llama_context_params are laid out otherwise")
        modes = model.n_gpu_layers, model.split_mode, model.main_gpu
        if modes != (-1, 1, 0) or model.tensor_split or model.kv_overrides:
            raise _version_error("llama_model_params are laid out otherwise")

    def tensor(self, address: int) -> Tensor:
        """The tensor at an address."""
        raw = _Tensor.from_address(address)
        name, elements = self._name(address), self._elements(address)
        shape = tuple(reversed(raw.ne))
        if raw.name != name or int(np.prod(shape)) != elements:
            raise _version_error("ggml_tensor is laid out otherwise")
        strides = tuple(reversed(raw.nb))
        while len(shape) > 2 and shape[0] == 1:
            shape, strides = shape[1:], strides[1:]
        return Tensor(
            address=address, name=name.decode(errors="replace"), op=self._op(address).decode(), kind=raw.type,
            shape=shape, strides=strides, nbytes=self._nbytes(address),
            sources=tuple(source for source in raw.src if source), is_swapped=bool(raw.op_params[1]),
            view_of=raw.view_src,
        )  # fmt: skip

    def read(self, tensor: Tensor) -> Array:
        """A copy of a tensor's values."""
        memory = self._bytes(tensor)
        return np.array(_strided(memory, tensor), order="C")

    def write(self, tensor: Tensor, values: Array) -> None:
        """Overwrite a tensor's values. If it is a view, the memory between its elements stays as it is."""
        memory = self._bytes(tensor)
        _strided(memory, tensor)[...] = values
        self._set(tensor.address, memory.ctypes.data, 0, memory.nbytes)

    def _bytes(self, tensor: Tensor) -> Array:
        memory = np.empty(tensor.nbytes, np.uint8)
        self._get(tensor.address, memory.ctypes.data, 0, tensor.nbytes)
        return memory


def _strided(memory: Array, tensor: Tensor) -> Array:
    return np.ndarray(tensor.shape, DTYPES[tensor.kind], memory.data, strides=tensor.strides)


def load_error(path: Path, library: Library, config: Mapping[str, Any] | None = None) -> CaptureError:
    """The error for a file that llama.cpp does not load, with its own message; ``config`` are the overridden values."""
    why = f" ({printable(library.first_error):.300})" if library.first_error else ""
    way_out = config_hint(config) if config else "is it a whole GGUF file?"
    return CaptureError(f"llamacpp:{printable(path)}: llama.cpp could not load it{why}; {way_out}")


def _version_error(why: str) -> CaptureError:
    return CaptureError(
        f"{PACKAGE} {version(PACKAGE)}: is of a llama.cpp that tensordiff does not know ({why}); "
        "install the version that make engine-llamacpp installs"
    )
