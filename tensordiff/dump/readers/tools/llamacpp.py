"""llama.cpp: the log of ``llama-debug`` or ``llama-eval-callback``, and the logits of ``--save-logits``.

A log prints a line ``NAME = (f32) OP(…) = {dimensions}`` for each tensor, at most three values at both ends of each
axis, and their sum: such a dump holds statistics. Passes are steps; a warm-up of two tokens that comes first is made
the last step. Names repeat: the second tensor of a name is its second call. Logits are raw float32 in
``llamacpp-<model>.bin`` beside ``…-tokens.bin``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import FileTensor, MappedFile, map_file, open_buffer, version_of
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Entry, Origin, Problem, Spec
from tensordiff.dump.readers import Format
from tensordiff.dump.statistics import SAMPLE, SampleTensor
from tensordiff.errors import BadFile

FORMAT = "llama.cpp"
FORMATS = (
    Format(
        FORMAT,
        "llama.cpp's log of every tensor, as statistics; the logits of `--save-logits`",
        "a log whose lines begin `common_debug_cb_eval:` or `ggml_debug:`; `*-tokens.bin` beside `*.bin`",
        "the order of the log",
    ),
)

_HEAD_BYTES = 1 << 16
_MARKS = (b"common_debug_cb_eval:", b"ggml_debug:")
_LINE = re.compile(  # one try per line and no ambiguous parts, since a log may have any length
    r"(?m)^.{0,200}?(?:common_debug_cb_eval|ggml_debug):[^\S\n]{1,80}((?:(?! = \().){1,400}) = \((\w{1,20})\)"
    r"[^\S\n]{1,80}(\w{1,40})\((.{0,2000}?)\}?\) = "
    r"\{(\d{1,12}), (\d{1,12}), (\d{1,12}), (\d{1,12})\}"
)
_SUM = re.compile(r"sum = (\S{1,40})")
_VALUE = re.compile(r"-?(?:\d+\.\d+|inf|nan)")
_NUMBERED = re.compile(r"^(.+?)-(\d{1,6})$")
_EDGE = 3
_HALF = 6e4
_WARM_UP = 2
_TOKENS = "-tokens.bin"
_LOGS = (".log", ".txt", ".out", "")

# The layers behind ggml's names for Llama's graph. Q and K are not among them: their rows are permuted for its rope.
_BLOCK = {
    ("attn_norm", 1): ("input_layernorm", "output"),
    ("Vcur", 1): ("self_attn.v_proj", "output"),
    ("kqv_out", 1): ("self_attn.o_proj", "input_0"),
    ("attn_out", 1): ("self_attn.o_proj", "output"),
    ("ffn_inp", 1): ("post_attention_layernorm", "input_0"),
    ("ffn_norm", 1): ("post_attention_layernorm", "output"),
    ("ffn_gate", 1): ("mlp.gate_proj", "output"),
    ("ffn_up", 1): ("mlp.up_proj", "output"),
    ("ffn_swiglu", 1): ("mlp.down_proj", "input_0"),
    ("ffn_out", 1): ("mlp.down_proj", "output"),
    ("l_out", 1): ("", "output"),
}
_WHOLE = {"embd": "embed_tokens", "result_norm": "norm", "result_output": "lm_head"}


class PrintedTensor(NamedTuple):
    """A tensor as a log shows it."""

    name: str
    dtype: str
    operation: str
    shape: tuple[int, ...]
    values: Array
    total: float


def try_open(at: DumpPath) -> Dump | None:
    """Open a log, the folder of one, or the logits of a run."""
    if not at.is_folder:
        if at.path.suffix.lower() in _LOGS and _is_log(at.path):
            return _open_log(at, at.path)
        beside = at.path.name.endswith(".bin") and at.path.with_name(at.path.name[:-4] + _TOKENS).is_file()
        return _open_logits(at, [at.path.name]) if beside else None
    if at.mentions(_TOKENS) and (logits := [n[: -len(_TOKENS)] + ".bin" for n in at.files if n.endswith(_TOKENS)]):
        present = [name for name in logits if name in at.files]
        if len(present) > 1:  # llama.cpp's scripts put both sides into one folder
            raise BadFile(at.path, f"holds the logits of {len(present)} runs; name one of {', '.join(present):.200}")
        return _open_logits(at, present)
    logs = [name for name in at.with_suffix(*_LOGS[:-1]) if _is_log(at.path / name)]
    if not logs:
        return None
    longest = max(logs, key=lambda name: (len(open_buffer(at.path / name)), name))
    dump = _open_log(at, at.path / longest)
    others = [
        Problem(name, "is another log; it is left out: open it by itself", True) for name in logs if name != longest
    ]
    return Dump(
        at.path, FORMAT, dump.entries, True, (*at.problems, *dump.problems, *others),
        statistics=dump.statistics, files=frozenset(logs),
    )  # fmt: skip


def _is_log(path: Path) -> bool:
    head = open_buffer(path)[:_HEAD_BYTES]
    return any(mark in head for mark in _MARKS)


def _open_log(at: DumpPath, path: Path) -> Dump:
    passes = _passes(_parse_log(path))
    if not passes:
        raise BadFile(path, "shows no tensor whole; was the run stopped?")
    if len(passes) > 1 and _tokens(passes[0]) == _WARM_UP < _tokens(passes[1]):
        passes = [*passes[1:], passes[0]]  # so that the first pass is the prompt's
    entries: list[Entry] = []
    for step, printed in enumerate(passes):
        calls: Counter[str] = Counter()
        for one in printed:
            calls[one.name] += 1
            layer, port, call = _layer_and_port(one.name, calls[one.name])
            name = one.name if calls[one.name] == 1 else f"{one.name}({calls[one.name]})"
            entries.append(Entry(name, layer, port, call, step, SampleTensor(one.values), Origin(one.operation)))
    return Dump(at.path, FORMAT, tuple(entries), True, (), statistics=(SAMPLE,))


def _layer_and_port(name: str, call: int) -> tuple[str, str, int]:
    match = _NUMBERED.match(name)
    if match and (known := _BLOCK.get((match[1], call))):
        part, port = known
        return f"layers.{match[2]}.{part}".rstrip("."), port, 1
    if name in _WHOLE and call == 1:
        return _WHOLE[name], "output", 1
    return name, "output", call


def _tokens(printed: list[PrintedTensor]) -> int:
    return printed[0].shape[-2] if len(printed[0].shape) > 1 else 1


def _passes(printed: Iterator[PrintedTensor]) -> list[list[PrintedTensor]]:
    """Tensors by pass: a pass begins with the name that the first one began with."""
    passes: list[list[PrintedTensor]] = []
    for one in printed:
        if not passes or (one.name == passes[0][0].name and one.operation == passes[0][0].operation):
            passes.append([])
        passes[-1].append(one)
    return passes


def _parse_log(path: Path) -> Iterator[PrintedTensor]:
    text = os.fsdecode(bytes(map_file(path)[:]))
    heads = list(_LINE.finditer(text))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        total = _SUM.search(text, head.end(), end)
        if total is None:
            continue  # the log was cut off within it
        shape = tuple(int(n) for n in head.group(8, 7, 6, 5))
        values = _values(text[head.end() : total.start()], shape)
        if values is not None:
            yield PrintedTensor(head[1].strip(), head[2], head[3], shape, values, _float(total[1]))


def _values(text: str, shape: tuple[int, ...]) -> Array | None:
    """The printed values, in the shape they were printed in: without leading axes of size 1."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    shown = tuple(min(n, 2 * _EDGE) for n in shape)
    numbers = [float(value) for value in _VALUE.findall(text)]
    if len(numbers) != int(np.prod(shown)):
        return None
    # Only four decimals are printed, so numbers below 1 have few digits.
    is_large = max(map(abs, numbers), default=0) > _HALF
    values = np.array(numbers).reshape(shown).astype(DTYPES["bfloat16" if is_large else "float16"])
    values.flags.writeable = False
    return values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _open_logits(at: DumpPath, files: list[str]) -> Dump | None:
    if len(files) != 1:
        return None
    path = at.folder / files[0]
    tokens = path.with_name(path.name[:-4] + _TOKENS)
    entries = []
    ports = ((tokens, "model", "input_input_ids", "int32"), (path, "lm_head", "output", "float32"))
    for place, layer, port, dtype in ports:
        size = len(open_buffer(place))
        if not size or size % 4:
            raise BadFile(place, f"has {size} bytes, which are no {dtype}; was the run stopped?")
        stored = FileTensor(MappedFile(place, version_of(place)), 0, Spec((size // 4,), DTYPES[dtype]))
        entries.append(Entry(place.name.removesuffix(".bin"), layer, port, 1, 0, stored))
    return Dump(at.path, FORMAT, tuple(entries), True, at.problems, files=frozenset((files[0], tokens.name)))
