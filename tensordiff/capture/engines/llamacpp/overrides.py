"""``--config`` for a GGUF file: replaces values of its metadata.

llama.cpp uses an override only if it has the type that the key has in the file, and silently ignores any other:
``llama.rope.freq_base=3000`` would change nothing. So a value is converted to the key's type, or refused.
"""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from tensordiff.capture.engines.llamacpp.library import KvOverride, Library, load_error
from tensordiff.errors import CaptureError, printable

_WHOLE, _REAL, _FLAG, _TEXT = range(4)  # the types of overrides
_TYPES = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 10, 11), _WHOLE), **dict.fromkeys((6, 12), _REAL), 7: _FLAG, 8: _TEXT,
}  # fmt: skip
"""The type of override for each type of key that can be overridden; lists cannot."""
_WORDS = {_WHOLE: "a whole number", _REAL: "a number", _FLAG: "true or false", _TEXT: "a text"}
_LONGEST = 128


class _InitParams(c.Structure):
    """gguf_init_params."""

    _fields_ = [("no_alloc", c.c_bool), ("context", c_void_p)]


def overrides(library: Library, path: Path, config: Mapping[str, Any]) -> Any:
    """The overrides as llama.cpp takes them: an array that ends with an empty key."""
    made = (KvOverride * (len(config) + 1))()
    if not config:
        return made
    types, architecture = _read_types(library, path, config)
    for one, (key, value) in zip(made, config.items(), strict=False):
        if key not in types:
            raise CaptureError(
                f"--config {printable(key):.120}: the file has no such key; its architecture is {architecture}, "
                f"write for example {architecture}.rope.freq_base=10000.0"
            )
        one.key, one.tag = key.encode(), types[key]
        _set_value(one, key, value)
    return made


def _set_value(one: KvOverride, key: str, value: Any) -> None:
    if one.tag == _FLAG and isinstance(value, bool):
        one.value.flag = value
    elif one.tag == _REAL and isinstance(value, int | float) and not isinstance(value, bool):
        one.value.real = value
    elif one.tag == _WHOLE and isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        one.value.whole = int(value)
    elif one.tag == _TEXT and isinstance(value, str) and len(value.encode()) < _LONGEST:
        one.value.text = value.encode()
    else:
        raise CaptureError(f"--config {printable(key)}: is {_WORDS[one.tag]} in the file; give such a value")


def _read_types(library: Library, path: Path, keys: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """The types of the given keys that the file has, and the name of its architecture."""
    function = library.function
    file = function("gguf_init_from_file", c_void_p, c_char_p, _InitParams)(os.fsencode(path), _InitParams(True, None))
    if not file:
        raise load_error(path, library)
    find = function("gguf_find_key", c_int64, c_void_p, c_char_p)
    kind_of = function("gguf_get_kv_type", c_int32, c_void_p, c_int64)
    try:
        short = (key for key in keys if len(key.encode()) < _LONGEST)
        found = {key: at for key in short if (at := find(file, key.encode())) >= 0}
        types = {key: kind_of(file, at) for key, at in found.items()}
        architecture = _architecture(function, file, find(file, b"general.architecture"))
    finally:
        function("gguf_free", None, c_void_p)(file)
    for key, kind in types.items():
        if kind not in _TYPES:
            raise CaptureError(f"--config {printable(key)}: is a list in the file, which llama.cpp does not override")
    return {key: _TYPES[kind] for key, kind in types.items()}, architecture


def _architecture(function: Callable[..., Callable[..., Any]], file: int, at: int) -> str:
    if at < 0:
        return "unknown"
    said: bytes = function("gguf_get_val_str", c_char_p, c_void_p, c_int64)(file, at)
    return printable(said.decode(errors="replace"))
