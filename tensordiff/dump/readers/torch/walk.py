"""Every tensor that a torch file holds, and what its position in dicts, lists and objects says about it.

A tensor is named by the keys that lead to it: ``{"a": {"b": tensor}}`` holds ``a.b``, ``{"a": [tensor, tensor]}`` holds
``a_0`` and ``a_1``. Besides the name, the keys may give layer, port and step: tensors under ``outputs`` are outputs, a
list of ``{"name", "tensor"}`` gives the names itself, ``{0: {…}, 1: {…}}`` of whole models are steps.

A pickle may refer to one value many times, so a few bytes can claim more tensors than a disk could hold: this module
bounds how often values may be shared, not how many there are. Objects of unknown classes may refer to one another in
circles and are entered once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from tensordiff.dump.names import LONGEST_NAME, WRAPPERS, parse_name, step_of
from tensordiff.dump.readers.torch.number_lists import is_setting_name, tensor_of_list
from tensordiff.dump.readers.torch.numpy_values import PickledArray
from tensordiff.dump.readers.torch.records import Blob, Record
from tensordiff.dump.readers.torch.tensors import BadPickle, LongKey, Storage, Tensor, UnreadableTensor


@dataclass(frozen=True)
class RefusedName(UnreadableTensor):
    """A tensor under a name that no model has."""


Leaf = Tensor | UnreadableTensor | PickledArray
_Container = dict[object, object] | list[object] | tuple[object, ...]

_MAX_DEPTH = 64
_MAX_TEXT = 1 << 25
_MAX_SHARING = 16
_ALWAYS_ALLOWED = 1 << 14
_MOST_OUTPUTS = 4
"""A longer list under a module's name is no tuple of outputs."""
_BARE_STORAGE = UnreadableTensor("is a bare storage; save the tensor itself")
_TOO_DEEP = UnreadableTensor(f"is nested more than {_MAX_DEPTH} deep; save a flat dict of tensors")
_WALKED_TYPES = (Tensor, UnreadableTensor, PickledArray, Storage, dict, list, tuple, Record)

_PORTS = {
    "output": "output", "outputs": "output", "out": "output", "result": "output",
    "input": "input", "inputs": "input", "in": "input",
}  # fmt: skip
_PORT_KEY = re.compile(r"(in|out)(?:put)?s?_?(\d{1,4})")
_GROUPS = frozenset(("args", "kwargs"))
_NAMES = ("name", "module_name", "module", "layer_name", "layer")
_VALUES = frozenset(("tensor", "value", "data", "output", "outputs", "activation", "out"))
_PER_LAYER = "hidden_states"
_PER_STEP = frozenset(("scores", "logits", "hidden_states", "decoder_hidden_states", "attentions"))
"""Fields of ``generate``'s result that hold one value for each step."""
_NUMBERED = re.compile(r"(?:^|[._])\d+(?:[._]|$)")
_LOOKS_LIKE_VALUES = re.compile(r"(?i)tensor|array|storage|rebuild|reconstruct|frombuffer")
_MODULE_DICTS = frozenset(("_modules", "_parameters", "_buffers"))
_WRAPPED = ("_local_tensor", "elem", "_data", "data")
_BLOB_FROM = 64


class DTensorPlacement(NamedTuple):
    """How a DTensor's local part lies in the whole: for each axis of the mesh, the dimension that is split."""

    placements: tuple[str | int, ...]
    """``"replicate"``, ``"partial"``, or the dimension."""
    mesh: tuple[int, ...]
    whole: tuple[int, ...]
    place: tuple[int, ...] = ()
    """The rank's position on each axis of the mesh, if the file says it."""


class Found(NamedTuple):
    """A tensor of a file, with what its position says; ``layer`` is None if only the name says anything."""

    name: str
    leaf: Leaf
    layer: str | None = None
    port: str = "output"
    step: int = 0
    placement: DTensorPlacement | None = None
    call: int = 1


class _Position(NamedTuple):
    """The current position of a walk."""

    name: str = ""
    layer: str | None = None
    port: str | None = None
    step: int = 0


def find_tensors(content: object, stem: str, skipped_lists: list[str] | None = None) -> list[Found]:
    """Every tensor a file holds, in the order it was saved; a bare one is named after the file.

    Names of lists of numbers that are taken for settings or histories, not for tensors, are added to ``skipped_lists``.
    """
    walk = _Walk(stem)
    tensors = list(walk.steps(content))
    if skipped_lists is not None:
        skipped_lists += walk.skipped_lists
    is_output = isinstance(content, Record) and _is_model_output(content)
    return sorted(tensors, key=_execution_key) if is_output else tensors


def _is_model_output(record: Record) -> bool:
    return record.of.short.endswith("Output") or "OutputWith" in record.of.short


def _is_generation(record: Record) -> bool:
    """Whether it is the result of transformers' ``generate``, which holds a tuple of all steps in each field."""
    return record.of.short.startswith("Generate") and _is_model_output(record)


def _generation_steps(fields: dict[object, object]) -> list[dict[object, object]]:
    """The fields of each step. What exists once, such as the cache, belongs to the last step."""
    tuples = {key: value for key, value in fields.items() if key in _PER_STEP and type(value) is tuple and value}
    steps: list[dict[object, object]] = [{} for _ in range(max(map(len, tuples.values()), default=1))]
    # Unprocessed scores are the logits themselves, and are called so. These are of the last token only, unlike the
    # ``logits`` of a model.

    for key, value in sorted(tuples.items(), key=lambda item: item[0] == "scores"):
        for fields_of_step, below in zip(steps, value, strict=False):
            fields_of_step["next_token_logits" if key == "logits" else key] = below
    steps[-1] |= {key: value for key, value in fields.items() if key not in tuples}
    return steps


def _execution_key(item: Found) -> tuple[int, float, int]:
    """When a field of transformers' ``ModelOutput`` was computed: layer by layer, then the norm, then the rest."""
    layer = item.layer or ""
    if match := re.match(r"layers\.(\d+)", layer):
        return item.step, float(match[1]), 0 if item.port == "input_0" else 2 if layer == match[0] else 1
    if match := re.search(r"layers_(\d+)_", item.port):
        return item.step, float(match[1]), 1
    return item.step, float("inf"), 0 if layer == "norm" else 1


class _Walk:
    """A bounded walk through the containers of a file."""

    def __init__(self, stem: str) -> None:
        self._stem, self._allowance, self._text = stem, _ALWAYS_ALLOWED, _MAX_TEXT
        self._seen: set[int] = set()
        self._records: set[int] = set()
        self._lists: dict[int, tuple[object, Leaf | None]] = {}
        self._in_settings = 0
        self.skipped_lists: list[str] = []

    def steps(self, content: object) -> Iterator[Found]:
        """The tensors of each step, if the outermost dict is one of steps."""
        steps = _steps_of(content)
        if not steps:
            yield from self.leaves(_Position(), content, 0)
        for step, below in steps:
            yield from self.leaves(_Position(step=step), below, 0)

    def leaves(self, at: _Position, value: object, depth: int) -> Iterator[Found]:
        if isinstance(value, Leaf):
            yield self._found(at, value)
        elif isinstance(value, Storage):
            yield self._found(at, _BARE_STORAGE)
        elif isinstance(value, Record):
            yield from self._record(at, value, depth)
        elif made := self._listed(at, value):
            yield self._found(at, made)
        elif isinstance(value, dict | list | tuple):
            if depth >= _MAX_DEPTH:
                yield self._found(at, _TOO_DEEP)
                return
            self._enter(value)
            for place, below in self._children(at, value):
                if isinstance(place, LongKey):
                    yield Found(f"{place.start}…", RefusedName(f"has a name of {place.length:,} characters"))
                    continue
                self._check_length()
                self._text -= len(place.name)
                yield from self.leaves(place, below, depth + 1)

    def _listed(self, at: _Position, value: object) -> Leaf | None:
        """The tensor that a list of numbers is; one that is referred to many times is made once."""
        if not isinstance(value, list | tuple):
            return None
        if id(value) not in self._lists:
            is_named = at.port is not None or bool(_NUMBERED.search(at.name)) or at.name.endswith((".weight", ".bias"))
            is_setting = not is_named and (self._in_settings > 0 or is_setting_name(at.name))
            made = tensor_of_list(value, is_flat=not is_setting)
            if made is None and is_setting and tensor_of_list(value, is_flat=True) is not None:
                self.skipped_lists.append(at.name or self._stem)
            self._lists[id(value)] = value, made
        return self._lists[id(value)][1]

    def _found(self, at: _Position, leaf: Leaf, placement: DTensorPlacement | None = None) -> Found:
        return Found(at.name or self._stem, leaf, at.layer, at.port or "output", at.step, placement)

    def _children(self, at: _Position, value: _Container) -> Iterator[tuple[_Position | LongKey, object]]:
        if isinstance(value, dict):
            if not at.name and at.port is None and all(k in _PORTS for k, v in value.items() if _holds_tensors(v)):
                at = at._replace(layer=self._stem)  # the file is a layer, its keys are ports
            return (
                (_position_under(at, key), below) for key, below in value.items() if isinstance(below, _WALKED_TYPES)
            )
        if named := _named_items(value):
            return ((_Position(name, name, None, at.step), below) for name, below in named)
        return self._items(at, value)

    def _items(self, at: _Position, value: list[object] | tuple[object, ...]) -> Iterator[tuple[_Position, object]]:
        before = at.name or self._stem
        is_outputs = bool(at.name) and len(value) <= _MOST_OUTPUTS
        joint = "." if at.name and all(isinstance(below, dict) for below in value) else "_"  # modules of a list
        for i, below in enumerate(value):
            if not isinstance(below, _WALKED_TYPES):
                continue
            name = f"{before}{joint}{i}"
            if before.rpartition(".")[2] == _PER_LAYER and len(value) > 1 and isinstance(below, Leaf):
                yield _Position(name, *_hidden_state(i, len(value)), at.step), below
            elif at.layer == "model" and at.port == "output_attentions" and isinstance(below, Leaf):
                yield _Position(name, f"layers.{i}.self_attn", "output_1", at.step), below
            elif at.port is not None:
                yield _Position(name, at.layer, f"{at.port}_{i}", at.step), below
            elif is_outputs and isinstance(below, Leaf):
                layer, port, _ = parse_name(at.name)
                yield _Position(name, layer, f"{port}_{i}", at.step), below
            else:
                yield _Position(name, None, None, at.step), below

    def _record(self, at: _Position, record: Record, depth: int) -> Iterator[Found]:
        """The tensors of an object: named ones first, then those of its arguments that were not among them."""
        if id(record) in self._records:
            return
        self._records.add(id(record))
        if record.of.name == "DTensor":
            yield from self._dtensor(at, record)
            return
        is_settings = is_setting_name(record.of.short)
        self._in_settings += is_settings
        yield from self._parts(at, record, depth)
        self._in_settings -= is_settings

    def _parts(self, at: _Position, record: Record, depth: int) -> Iterator[Found]:
        found = list(self._attributes(at, record, depth))
        seen = {id(item.leaf) for item in found}
        for part in (record.items, record.args):
            more = [item for item in self.leaves(at, part, depth + 1) if id(item.leaf) not in seen] if part else []
            found += more
            seen.update(id(item.leaf) for item in more)
        if not found and (_LOOKS_LIKE_VALUES.search(record.of.short) or _holds_bytes(record)):
            why = f"is an object of {record.of}, whose values we cannot read; save it as a plain tensor"
            found = [self._found(at, UnreadableTensor(why))]
        yield from found

    def _attributes(self, at: _Position, record: Record, depth: int) -> Iterator[Found]:
        attributes = record.attributes
        if record.of.name == "ActivationCache" and "cache_dict" in attributes:
            yield from self.leaves(at, attributes["cache_dict"], depth + 1)  # other attributes hold the whole model
            return
        wrapped = [attributes[key] for key in _WRAPPED if isinstance(attributes.get(key), Leaf | Record)]
        if len(wrapped) == 1 and _LOOKS_LIKE_VALUES.search(record.of.short):
            yield from self.leaves(at, wrapped[0], depth + 1)
            return
        is_output = _is_model_output(record) and not at.name
        place = _Position(at.name, "model", "output", at.step) if is_output else at
        seen: set[int] = set()
        is_generation = is_output and _is_generation(record)
        for part in (record.pairs, attributes, record.state if not attributes else None):
            steps = _generation_steps(part) if is_generation and isinstance(part, dict) else [part]
            for step, fields in enumerate(steps):
                if not isinstance(fields, dict | list | tuple):
                    continue
                for item in self.leaves(place._replace(step=place.step + step), fields, depth + 1):
                    if id(item.leaf) not in seen:
                        seen.add(id(item.leaf))
                        yield item

    def _dtensor(self, at: _Position, record: Record) -> Iterator[Found]:
        attributes = record.attributes
        local, spec = attributes.get("_local_tensor"), attributes.get("_spec")
        placement = _placement(spec) if isinstance(spec, Record) else None
        if isinstance(local, Record):  # an AsyncCollectiveTensor whose result has arrived
            local = local.attributes.get("elem")
        if isinstance(local, Leaf) and placement is not None:
            yield self._found(at, local, placement)
        else:
            yield self._found(at, UnreadableTensor("is a DTensor of a kind we do not know; save its .full_tensor()"))

    def _enter(self, value: _Container) -> None:
        """Count a container's values against the allowance, which grows with each new container."""
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._allowance += len(value) * _MAX_SHARING
        self._allowance -= len(value)
        if self._allowance < 0:
            raise BadPickle("holds values shared too often; save a flat dict of tensors")

    def _check_length(self) -> None:
        if self._text < 0:
            raise BadPickle(f"names its tensors with more than {_MAX_TEXT:,} characters; save under shorter keys")


def _position_under(at: _Position, key: object) -> _Position | LongKey:
    """The position under a key of a dict."""
    if isinstance(key, LongKey):
        return LongKey(f"{at.name}.{key.start}"[:60], len(at.name) + key.length)
    if key in _MODULE_DICTS:  # a whole nn.Module: its name is its path
        return at
    text = key.of.short if isinstance(key, Record) else str(key)
    name = f"{at.name}.{text}" if at.name else text
    if len(name) > LONGEST_NAME:
        return LongKey.of(name)
    if at.port is not None:
        return _Position(name, at.layer, at.port if key in _GROUPS else f"{at.port}_{text}", at.step)
    layer = at.name or at.layer
    if layer and (port := port_of_key(text)):
        return _Position(name, layer, port, at.step)
    return _Position(name, None, None, at.step)


def _holds_tensors(value: object, depth: int = 4) -> bool:
    """Whether a value holds tensors, as far as a short look tells."""
    if isinstance(value, Tensor | PickledArray):
        return True
    if depth and isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return any(_holds_tensors(one, depth - 1) for one in islice(inner, 64))
    return False


def port_of_key(key: str) -> str | None:
    """The port that a key of a layer's dict names; None if it names none."""
    if key in _PORTS:
        return _PORTS[key]
    match = _PORT_KEY.fullmatch(key)
    return f"{match[1]}put_{match[2]}" if match else None


def _hidden_state(index: int, count: int) -> tuple[str, str]:
    """Layer and port of an element of transformers' ``hidden_states``.

    It holds the first layer's input, each layer's output, and the last output after the norm.
    """
    if index == 0:
        return "layers.0", "input_0"
    return ("norm", "output") if index == count - 1 else (f"layers.{index - 1}", "output")


def _steps_of(content: object) -> list[tuple[int, object]]:
    """Steps and what each holds: a dict whose keys are numbers, or a list, and each value names a whole model."""
    if type(content) is dict and len(content) == 1 and next(iter(content)) in WRAPPERS:
        content = next(iter(content.values()))
    if type(content) is list:
        return [*enumerate(content)] if len(content) > 1 and _name_the_same_layers(content) else []
    if type(content) is not dict or not content:
        return []
    steps: list[tuple[int, object]] = []
    for key, value in content.items():
        is_named = type(key) is str and not key.isdecimal()
        step = key if type(key) is int else step_of(key) if type(key) is str else None
        if step is None or step < 0 or type(value) is not dict or not (is_named or _names_layers(value)):
            return []
        steps.append((step, value))
    return steps


def _name_the_same_layers(items: list[object]) -> bool:
    """Whether all are dicts that hold tensors under the same names, some of them of numbered layers."""
    first = items[0]
    if type(first) is not dict or not _names_layers(first):
        return False
    return all(type(item) is dict and item.keys() == first.keys() and _holds_tensors(item) for item in items)


def _names_layers(value: dict[object, object]) -> bool:
    """Whether keys hold numbers of layers, so that a number above them does not."""
    return any(type(key) is str and _NUMBERED.search(key) for key in islice(value, 64))


def _named_items(items: list[object] | tuple[object, ...]) -> list[tuple[str, object]]:
    """Names and values of a list of ``{"name", "tensor"}`` or ``(name, tensor)``; empty for any other list."""
    named: list[tuple[str, object]] = []
    for item in items:
        if type(item) is dict:
            name = next((item[key] for key in _NAMES if type(item.get(key)) is str), None)
            values = {key: value for key, value in item.items() if isinstance(value, _WALKED_TYPES)}
            alone = next(iter(values.values())) if len(values) == 1 and values.keys() <= _VALUES else values
        elif type(item) in (tuple, list) and len(item) == 2:  # type: ignore[arg-type]
            name, alone = item  # type: ignore[misc]
        else:
            return []
        if type(name) is not str or not name or len(name) > LONGEST_NAME or not isinstance(alone, _WALKED_TYPES):
            return []
        named.append((name, alone))
    return named


def _placement(spec: Record) -> DTensorPlacement | None:
    """What a DTensor's spec says about how it is split."""
    attributes = spec.attributes
    mesh, meta, declared = (attributes.get(key) for key in ("mesh", "tensor_meta", "placements"))
    if not isinstance(mesh, Record) or not isinstance(declared, tuple) or not isinstance(meta, Record) or not meta.args:
        return None
    shape = meta.args[0]
    if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape):
        return None
    known = [_parse_placement(one) for one in declared]
    if None in known:
        return None
    placements = tuple(p for p in known if p is not None)
    return DTensorPlacement(placements, _mesh_shape(mesh, len(known)), shape, _mesh_position(mesh, len(known)))


def _parse_placement(one: object) -> str | int | None:
    if not isinstance(one, Record):
        return None
    if one.of.name == "Replicate":
        return "replicate"
    if one.of.name == "Partial":
        reduced = one.attributes.get("reduce_op") or (one.args[0] if one.args else "sum")
        return "partial" if reduced == "sum" else None
    dim = one.attributes.get("dim", one.args[0] if one.args else None)
    return dim if one.of.name == "Shard" and type(dim) is int else None


def _mesh_position(mesh: Record, axes: int) -> tuple[int, ...]:
    """The rank's position on each axis of the mesh; empty if the file does not say it."""
    place = mesh.attributes.get("_coordinate_on_dim")
    if isinstance(place, tuple | list) and len(place) == axes and all(type(n) is int and n >= 0 for n in place):
        return tuple(n for n in place if type(n) is int)
    return ()


def _mesh_shape(mesh: Record, axes: int) -> tuple[int, ...]:
    """Sizes of the mesh; empty if the file does not say them plainly."""
    layout = mesh.attributes.get("_layout")
    sizes = layout.attributes.get("shape") if isinstance(layout, Record) else None
    if type(sizes) is tuple and len(sizes) == axes and all(type(n) is int and n > 0 for n in sizes):
        return sizes
    return ()


def _holds_bytes(record: Record) -> bool:
    """Whether an object holds bytes of its own, which may be values."""
    values = (*record.args, *record.attributes.values())
    return any(isinstance(v, Blob) or (isinstance(v, bytes) and len(v) >= _BLOB_FROM) for v in values)
