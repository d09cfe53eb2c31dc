"""The schema of tensordiff's own dumps, shared by the writer and the reader.

``manifest.json`` holds the facts of the run and one record per entry, in execution order. While a capture runs, the
journal ``entries.jsonl`` holds the same, one line each: the first line is the schema and the facts, every other line is
``{"facts": …}`` or a record. Byte offsets count from the start of the shard's file, and the bytes of a shard are in the
order of the records.

A shard is a plain safetensors file. A tensor's key in it is its name. If that is not unique (another step, a call that
the name does not say, a ``#`` in the name), ``#step=S#call=C`` follows. Records, keys and shard names are formatted
only here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import Any

from tensordiff.dump.dtypes import DTYPES, name_of
from tensordiff.dump.files import MAX_RANK, FileTensor, MappedFile
from tensordiff.dump.model import Entry, EntryKey, Origin, Spec
from tensordiff.dump.names import parse_name

SCHEMA = "tensordiff.dump/1"
MANIFEST = "manifest.json"
JOURNAL = "entries.jsonl"
PARTIAL_MANIFEST = "manifest.json.partial"
"""What older versions called a manifest that was not complete."""

FACTS = (
    "source", "framework", "versions", "device", "accelerators", "accelerator_software", "device_map", "dtype",
    "prompt", "token_ids", "decode_token_ids", "config_overrides", "flags", "weights_hash", "notes", "settings",
    "model", "calls", "injection", "stacks", "error", "quantization", "quantized_as", "signature", "order",
    "loss", "config",
)  # fmt: skip

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # made once: making one costs more than using it
_SHARD = re.compile(r"tensors-[0-9]{5,9}\.safetensors")
_KEY = re.compile(r"(.+)#step=([0-9]{1,9})#call=([0-9]{1,9})", re.DOTALL)
_SMALL = 1 << 31  # calls, steps and source lines count below this
_BIG = 1 << 63  # bytes count below this, as they do in numpy

_LOCATION = itemgetter("name", "layer", "port", "call", "step", "shape", "dtype", "shard", "bytes")
_ORIGIN = itemgetter("module_class", "source_file", "source_line", "injected")


class RecordError(ValueError):
    """A record is not valid. The message completes a sentence: ``entry 3 …``."""


def shard_name(number: int) -> str:
    """The file name of a shard."""
    return f"tensors-{number:05d}.safetensors"


def is_shard_name(name: str) -> bool:
    """Whether a file is named like a shard."""
    return _SHARD.fullmatch(name) is not None


def shard_key(name: str, step: int, call: int) -> str:
    """A tensor's key in its shard, unique for each name, step and call."""
    named_call = parse_name(name).call if ")" in name else 1
    plain = step == 0 and call == named_call and "#" not in name and name != "__metadata__"
    key = name if plain else f"{name}#step={step}#call={call}"
    # UTF-8 cannot encode a lone surrogate, and other readers of safetensors would refuse the whole shard.
    return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()


def split_shard_key(key: str) -> EntryKey | None:
    """Name, step and call of a key that contains them; None for a key that is just a name."""
    match = _KEY.fullmatch(key)
    return EntryKey(match[1], int(match[2]), max(1, int(match[3]))) if match else None


def are_counts(step: int, call: int) -> bool:
    """Whether a step (from 0) and a call (from 1) are in range."""
    return 0 <= step < _SMALL and 1 <= call < _SMALL


def encode(value: object) -> str:
    """A value as strict JSON on one line."""
    return _ENCODER.encode(value)


def json_string(text: str) -> str:
    """Text as JSON."""
    return encode_basestring_ascii(text)


@lru_cache(1024)
def json_shape(shape: tuple[int, ...]) -> str:
    """A shape as JSON."""
    return f"[{','.join(map(str, shape))}]"


def record(key: EntryKey, spec: Spec, origin: Origin, begin: int, end: int, shard: str) -> str:
    """An entry as one line of JSON; ``begin`` and ``end`` are its bytes in the shard.

    Formatted by hand, because the model waits meanwhile: encoding a dict takes several times as long.
    """
    name, step, call = key
    layer, port, _ = parse_name(name)
    return (
        f'{{"name":{json_string(name)},"layer":{json_string(layer)},"port":{json_string(port)},"call":{call:d},"step":{step:d},'
        f'{_origin_json(origin)},"shape":{json_shape(spec.shape)},"dtype":"{name_of(spec.dtype)}","shard":"{shard}",'
        f'"bytes":[{begin},{end}]}}'
    )


@lru_cache(1024)
def _origin_json(origin: Origin) -> str:
    return encode(origin._asdict())[1:-1]


def parse_record(
    fields: Any, file: Callable[[str], MappedFile], texts: MutableMapping[str, str] | None = None
) -> tuple[Entry, str, int, int]:
    """Read and check a record: the entry, its shard, and where its bytes begin and end there.

    ``file`` turns the name of a shard into a file of the dump, or raises. ``texts`` holds the texts of earlier records,
    so that equal ones are shared: steps and ports of a layer repeat its name, which is a fifth of the memory of a
    million entries.
    """
    try:
        name, layer, port, call, step, shape, dtype, shard, (begin, end) = _LOCATION(fields)
        *where, injected = _ORIGIN(fields)
        spec, nbytes, origin = *_spec(dtype, *shape), _origin(*where)
    except RecordError:
        raise
    except KeyError as error:
        raise RecordError(f"does not say its {error}") from error
    except (TypeError, ValueError) as error:
        raise RecordError(f"is no record of a tensor ({error!s:.200})") from error
    if not (type(name) is type(layer) is type(port) is type(shard) is str):
        raise RecordError("has a name that is not text")
    if not (type(call) is type(step) is int and are_counts(step, call)):
        raise RecordError(f"has an impossible call ({call!s:.40}) or step ({step!s:.40})")
    if not (type(begin) is type(end) is int and 8 <= begin <= end < _BIG and end - begin == nbytes):
        raise RecordError(f"lies about its bytes: shape {shape!s:.120}, bytes {begin!s:.40} to {end!s:.40}")
    if injected is not None:
        origin = (origin or Origin())._replace(injected=_injected_names(injected))
    if texts is not None:
        share = texts.setdefault
        name, layer, port = share(name, name), share(layer, layer), share(port, port)
    stored = FileTensor(file(shard), begin, spec)
    return Entry(name, layer, port, call, step, stored, origin), shard, begin, end


# Cached, because a model's layers are alike; typed, because True must not pass for 1.
@lru_cache(1024, typed=True)
def _spec(dtype: object, *shape: object) -> tuple[Spec, int]:
    """The spec that a record claims, and how many bytes it takes."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RecordError(f"is of a type we do not know ({dtype!s:.40})")
    lengths = tuple(n for n in shape if type(n) is int and 0 <= n < _BIG)
    itemsize = DTYPES[dtype].itemsize
    # numpy multiplies the other dimensions of an empty tensor too.
    if len(lengths) != len(shape) or len(shape) > MAX_RANK or math.prod(n or 1 for n in lengths) * itemsize >= _BIG:
        raise RecordError(f"has an impossible shape {shape!s:.120}")
    return Spec(lengths, DTYPES[dtype]), math.prod(lengths) * itemsize


@lru_cache(1024, typed=True)
def _origin(module_class: object, source_file: object, source_line: object) -> Origin | None:
    if module_class is None and source_file is None and source_line is None:
        return None
    if not isinstance(module_class, str | None) or not isinstance(source_file, str | None):
        raise RecordError("has a module class or a source file that is not text")
    if source_line is not None and not (type(source_line) is int and 0 <= source_line < _SMALL):
        raise RecordError(f"has an impossible source line ({source_line!s:.40})")
    return Origin(module_class, source_file, source_line)


def _injected_names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RecordError("lists what was injected as something other than names")
    return tuple(names)
