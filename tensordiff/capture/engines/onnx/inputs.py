"""The inputs of a graph: what the user gives, what the reference was given, and what can be derived from these.

A graph declares the name, type and shape of each input, so an array of another type is cast, and one of another shape
is refused before anything runs. Companions of tokens (a mask, positions, an empty cache) are made if the graph asks for
them and none were given; any other missing input is named in an error. A prompt is encoded by the tokenizer that lies
beside the model, if transformers is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from tensordiff.capture.engines.hf.tokenizer import has_tokenizer
from tensordiff.capture.engines.onnx.model import Model
from tensordiff.capture.engines.onnx.ports import port_word
from tensordiff.capture.engines.onnx.session import Feed
from tensordiff.capture.settings import PROMPT, Settings, prompt_text
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array, DType, is_float
from tensordiff.errors import CaptureError, first_line, printable


class DeclaredInput(NamedTuple):
    """One input of a graph, as the graph declares it."""

    name: str
    elem_type: int
    dims: tuple[int | str, ...] | None
    """Lengths, or names of variable lengths; None if not even their number is declared."""

    @property
    def dtype(self) -> DType:
        """The type its values must have."""
        found: DType = tensor_dtype_to_np_dtype(self.elem_type)
        return found

    @property
    def rank(self) -> int | None:
        """The number of dimensions, if declared."""
        return None if self.dims is None else len(self.dims)

    def __str__(self) -> str:
        dims = "any shape" if self.dims is None else f"[{', '.join(map(str, self.dims))}]"
        return f"{printable(self.name)} ({self.dtype.name}, {printable(dims)})"

    def feed(self, array: Array, path: Path) -> Feed:
        """Values for this input in its own type; raises ``CaptureError`` if they do not fit."""
        if is_float(array.dtype) and not is_float(self.dtype):
            raise CaptureError(f"{printable(path.name)}: wants {self}, and {array.dtype.name} was given")
        if not self._takes(array.shape):
            raise CaptureError(f"{printable(path.name)}: wants {self}, and the shape {list(array.shape)} was given")
        return Feed(np.asarray(array, self.dtype, order="C"), self.elem_type)

    def _takes(self, shape: tuple[int, ...]) -> bool:
        if self.dims is None:
            return True
        pairs = zip(self.dims, shape, strict=False)
        return len(self.dims) == len(shape) and all(isinstance(dim, str) or dim == length for dim, length in pairs)


def declared_input(about: ValueInfoProto, path: Path) -> DeclaredInput:
    """An input as its graph declares it; raises ``CaptureError`` if it is not a tensor."""
    if not about.type.HasField("tensor_type"):
        kind = about.type.WhichOneof("value") or "value of unknown type"
        raise CaptureError(
            f"{printable(path.name)}: wants {printable(about.name)}, a {kind}, and only tensors are given"
        )
    tensor = about.type.tensor_type
    dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
    return DeclaredInput(about.name, tensor.elem_type, dims)


def _dim(dim: Any) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") else (dim.dim_param or "?")


_PAST = re.compile(r"past(_key_values?)?[._]\d")
_NAMES = ("attention_mask", "position_ids", "cache_position", "token_type_ids", "use_cache_branch")


def is_companion(name: str) -> bool:
    """Whether an input can be derived from the tokens."""
    return name in _NAMES or is_cache(name)


def is_cache(name: str) -> bool:
    """Whether an input is part of a cache."""
    return _PAST.search(name) is not None


def companion(each: DeclaredInput, batch: int, length: int, past: int) -> Array | None:
    """The value of a companion for so many tokens; None if it is unknown, or declared in another form."""
    rank = each.rank
    positions = np.arange(past, past + length)
    match each.name:
        case "attention_mask" if rank in (None, 2):
            return np.ones((batch, past + length), np.int64)
        case "position_ids" if rank in (None, 2):
            return np.broadcast_to(positions, (batch, length))
        case "position_ids" | "cache_position" if rank in (None, 1):
            return positions
        case "token_type_ids" if rank in (None, 2):
            return np.zeros((batch, length), np.int64)
        case "use_cache_branch":
            return np.zeros(1, bool)
    return None


def empty_cache(each: DeclaredInput, batch: int) -> Array | None:
    """An empty cache; None if the graph declares no variable length that could be zero."""
    if each.dims is None or sum(isinstance(dim, str) for dim in each.dims[1:]) != 1:
        return None
    first = batch if isinstance(each.dims[0], str) else each.dims[0]
    return np.zeros((first, *(0 if isinstance(dim, str) else dim for dim in each.dims[1:])), each.dtype)


def could_be_tokens(each: DeclaredInput) -> bool:
    """Whether an input of another name may take token ids."""
    return each.dtype.kind in "iu" and each.rank in (None, 1, 2) and not is_companion(each.name)


def tokenizer_folder(path: Path) -> Path | None:
    """The folder that holds a tokenizer: the model's, or its parent if the folder is called ``onnx``."""
    folders = (path.parent, path.parent.parent) if path.parent.name == "onnx" else (path.parent,)
    return next((folder for folder in folders if has_tokenizer(folder)), None)


def load_tokenizer(path: Path, settings: Settings) -> Any:
    """The tokenizer beside a model; None if there is none."""
    folder = tokenizer_folder(path)
    if folder is None:
        return None
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise CaptureError(
            f"{printable(folder)}: has a tokenizer, which transformers reads, and that is not installed; "
            "install it, or give --input-ids 1,2,3"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
    except Exception as error:  # transformers may raise any exception
        reason = first_line(error)
        raise CaptureError(
            f"{printable(folder)}: its tokenizer cannot be read ({reason:.200}); give --input-ids 1,2,3"
        ) from error


IDS = "input_ids"


@dataclass(frozen=True)
class GraphInputs:
    """The inputs that the graph is run on."""

    feeds: Mapping[str, Feed]
    prompt: str | None = None
    token_ids: list[int] | None = None
    notes: tuple[str, ...] = field(default=())


def make_inputs(model: Model, settings: Settings, reference: Dump | None) -> GraphInputs:
    """Make the inputs of a graph as the settings say."""
    wanted = {each.name: declared_input(each, model.path) for each in model.inputs}
    made = _InputBuilder(model.path, wanted, settings)
    made.from_file()
    made.from_tokens()
    if reference is not None:
        made.from_reference(reference)
    made.from_default_prompt()
    made.add_companions()
    if lacking := [each for name, each in wanted.items() if name not in made.arrays]:
        raise CaptureError(made.asking(lacking[0]))
    feeds = {name: each.feed(made.arrays[name], model.path) for name, each in wanted.items()}
    return GraphInputs(feeds, made.prompt, made.token_ids(), tuple(made.notes))


class _InputBuilder:
    """Collects the inputs of a graph."""

    def __init__(self, path: Path, wanted: Mapping[str, DeclaredInput], settings: Settings) -> None:
        self.path, self.wanted, self.settings = path, wanted, settings
        self.arrays: dict[str, Array] = {}
        self.prompt: str | None = None
        self.notes: list[str] = []
        self._tokens = IDS
        """The input that was given tokens, if any."""

    # --- the inputs that the user gives

    def from_file(self) -> None:
        """Take ``--inputs``: tensors by the names of inputs, or a dump, from which the whole model's inputs
        are taken.
        """
        if self.settings.inputs is None:
            return
        dump = open_dump(Path(self.settings.inputs))
        found, over = self._matched(_offered(dump))
        if not found:
            path = printable(self.path.name)
            raise CaptureError(f"{printable(dump.path)}: has no input of {path}; those are: {self._all()}")
        self.arrays |= found
        if over:
            self.notes.append(f"{printable(dump.path)}: {printable(', '.join(over))} is not asked for, and left out")

    def from_tokens(self) -> None:
        """Take ``--input-ids``, ``--prompt`` and ``--prompt-file``."""
        text, ids = prompt_text(self.settings), self.settings.input_ids
        if text is not None and ids is not None:
            raise CaptureError("--prompt and --input-ids: give one of them")
        if ids is not None:
            self._take_ids(ids)
        if text is not None:
            self._take_text(text)

    def _take_ids(self, ids: Sequence[int]) -> None:
        name = self._ids_name()
        if name is None:
            raise CaptureError(f"{printable(self.path.name)}: takes no tokens; its inputs are {self._all()}")
        if name in self.arrays:
            raise CaptureError(f"--input-ids and --inputs: both give {printable(name)}; give one of them")
        row = np.asarray(ids, np.int64)
        self.arrays[name] = row if self.wanted[name].rank == 1 else row[None]
        self._tokens = name

    def _take_text(self, text: str) -> None:
        if self._ids_name() is None:
            raise CaptureError(f"{printable(self.path.name)}: takes no tokens; its inputs are {self._all()}")
        tokenizer = load_tokenizer(self.path, self.settings)
        if tokenizer is None:
            raise CaptureError(f"{printable(self.path)}: has no tokenizer beside it; give --input-ids 1,2,3")
        encoded = {name: np.asarray(array) for name, array in tokenizer(text, return_tensors="np").items()}
        if not encoded[IDS].size:
            raise CaptureError(f"the prompt {text!r:.60} has no tokens; give a longer one, or --input-ids 1,2,3")
        self._take_ids(encoded[IDS][0].tolist())
        more = {name: array for name, array in encoded.items() if name in self.wanted and name != IDS}
        self.arrays = more | self.arrays
        self.prompt = text

    # --- the inputs of the reference

    def from_reference(self, reference: Dump) -> None:
        """Take the inputs of the reference's dump, where the user gave none."""
        theirs = _ids_of(reference)
        if (ours := self.token_ids()) is not None and theirs is not None and ours != theirs:
            raise CaptureError(
                f"the tokens given are {ours[:12]}, the reference was run on {theirs[:12]}; "
                "leave them out and the reference's are taken"
            )
        found, _ = self._matched(_given(reference))
        self.arrays = found | self.arrays
        if theirs is not None and (name := self._ids_name()) is not None and name not in self.arrays:
            self._take_ids(theirs)
        if self.prompt is None and isinstance(prompt := reference.facts.get("prompt"), str):
            self.prompt = prompt

    def _matched(self, offered: Mapping[str, Entry]) -> tuple[dict[str, Array], list[str]]:
        """Match arrays to inputs. Returns the arrays by input, and the names that match none."""
        names = {
            name: said for name in self.wanted if (said := name if name in offered else port_word(name)) in offered
        }
        over = [name for name in offered if name not in names.values()]
        if not names:
            names = _by_position(list(self.wanted), over) or _by_position(self._main(), over)
            over = [] if names else over
        return {name: offered[spelling].read() for name, spelling in names.items()}, over

    def _main(self) -> list[str]:
        """Inputs that cannot be derived from the tokens."""
        return [name for name in self.wanted if not is_companion(name)]

    # --- defaults and companions

    def from_default_prompt(self) -> None:
        """Take the default prompt, the same as for every other framework, if nothing was given and there is a
        tokenizer.
        """
        name = self._ids_name()
        if name is not None and name not in self.arrays and not self._has_embeddings() and tokenizer_folder(self.path):
            self._take_text(PROMPT)
            self.notes.append(f"no prompt was given, so it is: {PROMPT}")

    def _has_embeddings(self) -> bool:
        return "inputs_embeds" in self.arrays

    def add_companions(self) -> None:
        """Add what goes with tokens: a mask, positions, an empty cache."""
        size = self._size()
        if size is None:
            return
        caches = {name: each for name, each in self.wanted.items() if is_cache(name) and name not in self.arrays}
        self.arrays |= {
            name: empty for name, each in caches.items() if (empty := empty_cache(each, size[0])) is not None
        }
        for name, each in self.wanted.items():
            if name not in self.arrays and (made := companion(each, *size, self._past())) is not None:
                self.arrays[name] = made

    def _size(self) -> tuple[int, int] | None:
        """The batch size and the number of tokens, if known."""
        name = next((name for name in (self._ids_name(), "inputs_embeds") if name in self.arrays), None)
        if name is None:
            return None
        shape = self.arrays[name].shape
        return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])

    def _past(self) -> int:
        """The number of tokens in a given cache."""
        caches = (array for name, array in self.arrays.items() if is_cache(name) and array.ndim == 4)
        return max((array.shape[-2] for array in caches), default=0)

    # --- names and messages

    def _ids_name(self) -> str | None:
        """The input that takes tokens: by its name, or the only one that could."""
        if IDS in self.wanted:
            return IDS
        could = [name for name, each in self.wanted.items() if could_be_tokens(each)]
        return could[0] if len(could) == 1 else None

    def token_ids(self) -> list[int] | None:
        """The token ids of the first sequence of the batch."""
        if self._tokens not in self.arrays:
            return None
        return [int(one) for one in np.atleast_2d(self.arrays[self._tokens])[0]]

    def asking(self, each: DeclaredInput) -> str:
        """A sentence on how to give a missing input."""
        way = "--input-ids 1,2,3, or " if each.name == self._ids_name() else ""
        return (
            f"{printable(self.path.name)}: wants {each}, and it was not given; "
            f"give {way}--inputs FILE.safetensors with a tensor of that name"
        )

    def _all(self) -> str:
        return ", ".join(map(str, self.wanted.values())) or "none"


def _by_position(wanted: Sequence[str], offered: Sequence[str]) -> dict[str, str]:
    """Match by position, which is unambiguous if both sides have one name, or if the offered names are numbers."""
    is_clear = len(wanted) == len(offered) and (len(offered) == 1 or all(name.isdigit() for name in offered))
    return dict(zip(wanted, offered, strict=True)) if is_clear else {}


# --- dumps


def _offered(dump: Dump) -> dict[str, Entry]:
    """The inputs of the whole model in a run, or all tensors of a file."""
    return _given(dump) or {entry.name: entry for entry in dump.entries}


def _given(dump: Dump) -> dict[str, Entry]:
    """The inputs of the whole model in a run."""
    given = [entry for entry in dump.entries if _is_given(entry)]
    whole = min((entry.layer for entry in given), key=len, default="")
    return {entry.port.removeprefix("input_"): entry for entry in given if entry.layer == whole}


def _is_given(entry: Entry) -> bool:
    """Whether this is an input of a layer, named as dumps do: a file of tensors may hold ``decoder_input_ids`` too."""
    return entry.is_input and entry.name.endswith(f"-{entry.port}") and entry.step == 0 and entry.call == 1


def _ids_of(reference: Dump) -> list[int] | None:
    found = reference.facts.get("token_ids")
    return found if isinstance(found, list) and all(type(one) is int for one in found) else None
