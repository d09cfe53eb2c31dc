"""The parameters of a checkpoint, or those that a capture wrote beside activations.

A parameter is a tensor under its name without ``.weight`` or ``.bias``, so that the rules for layers apply to it.
Tensors that only belong to another one (scales of a quantized weight, one device's shards) are joined with it. What a
model computes itself (rope's frequencies, masks) is no parameter, and its absence is no finding.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from tensordiff.dump.dtypes import is_float, name_of
from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.model import Dump, Entry, Spec, StoredTensor
from tensordiff.dump.names import PARAMETER_PORT
from tensordiff.errors import BadFile, DumpError
from tensordiff.weights.packed import fp8_scaled, int8_scaled, mlx_packed, quantization_of
from tensordiff.weights.quantization import Dequantized, Quantization, declared_quantization, is_plausible_quantization
from tensordiff.weights.word_packed import compressed, gptq_or_awq

_KINDS = {
    "weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "kernel": "weight", "embedding": "weight",
}  # fmt: skip
ACTIVATION_SCALE = "input_scale"
"""The kind of a scale that no weight is multiplied by: it is compared by itself."""
_COMPANIONS = ("scales", "biases", "weight_scale_inv", "weight_scale", "scale_inv", ACTIVATION_SCALE)
_ZERO_POINT = "weight_zero_point"
_PACKED = ("qweight", "qzeros", "g_idx", "weight_packed", "weight_shape", _ZERO_POINT, "weight_g_idx")
_IS_PARAMETER = re.compile(rf"(?:^|[./])(?:{'|'.join((*_KINDS, *_COMPANIONS, *_PACKED))})$")
_DERIVED = re.compile(
    r"(?:^|[./])(?:inv_freq|original_inv_freq|rope_freqs\.weight|freqs_cis|position_ids|num_batches_tracked|masked_bias"
    r"|token_type_ids|rope_factors_(?:long|short)\.weight)$"
)
_TRAINING = re.compile(
    r"(?:optim(?:izer)?(?:_states?|s)?(?:_dict)?|(?:lr_)?schedulers?|grad_scaler|scaler)[./].*", re.IGNORECASE
)
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_projection|predictions\.decoder)$")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|shared)$")
_MASK = re.compile(r"\.(?:attn|attention)\.bias$")
_SHARD = re.compile(r"\.?(?:_shards|_ranks)\.(\d{1,9})(?=\.|$)")
_FLAX_NUMBER = re.compile(r"(?<=[a-z])_(\d+)(?=\.|$)")
_MOSTLY = 0.8
_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class Parameter:
    """One parameter, not loaded."""

    name: str
    """Its name in the checkpoint."""
    stem: str
    """Its layer: the name without its kind."""
    kind: str
    """``weight``, ``bias``, or empty if the name says neither."""
    stored: StoredTensor
    shards: tuple[StoredTensor, ...] = ()
    """Its parts on several devices, if only the other side shows what they make together."""
    canonical: str = ""
    """The stem after the rules, to be compared with the other side's."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype; reads a header at most."""
        return self.stored.spec

    @cached_property
    def quantization(self) -> Quantization | None:
        """How it was quantized, if it was."""
        return quantization_of(self.stored)

    @property
    def title(self) -> str:
        """Its canonical name, for people."""
        return f"{self.canonical}.{self.kind}" if self.kind else self.canonical

    @property
    def is_derived(self) -> bool:
        """Whether a model computes it itself."""
        if _MASK.search(self.name) and len(self.spec.shape) == 4:
            return True
        return _DERIVED.search(self.name) is not None

    @property
    def is_training_state(self) -> bool:
        """Whether it belongs to an optimizer, as training keeps it beside the parameters in one file."""
        return _TRAINING.fullmatch(self.name) is not None

    @property
    def is_head(self) -> bool:
        """Whether it is the output head, which many models share with the embedding."""
        return _HEAD.search(self.canonical) is not None

    @property
    def is_embedding(self) -> bool:
        """Whether it is the embedding of tokens."""
        return _EMBEDDING.search(self.canonical) is not None

    @property
    def is_vocabulary(self) -> bool:
        """Whether its rows are tokens: an embedding, or the head."""
        return re.search(r"(?:embed|wte|lm_head|tok_|vocab|decoder$|(?:^|\.)shared$)", self.canonical) is not None


def is_checkpoint(dump: Dump) -> bool:
    """Whether a dump holds parameters and nothing else, by its names."""
    if dump.statistics or not dump.entries or dump.format == "tensordiff":
        return False
    entries = dump.entries
    allowed = len(entries) - math.ceil(_MOSTLY * len(entries))
    others = (entry for entry in entries if _IS_PARAMETER.search(_own_name(entry)) is None)
    if next(islice(others, allowed, None), None) is not None:
        return False  # a run, as a few of its entries show
    return not any(entry.is_input or entry.step or entry.call != 1 for entry in entries)


def holds_parameters(dump: Dump) -> bool:
    """Whether there is something to compare as parameters: a checkpoint, or a capture that wrote them."""
    return bool(dump.parameters) or is_checkpoint(dump)


def parameters_of(dump: Dump) -> list[Parameter]:
    """All parameters: those that a capture wrote as such, otherwise every entry."""
    entries = dump.parameters or dump.entries
    stems = _joined(_with_declared_quantization(dump, _parse(entry)) for entry in entries)
    config = _config(dump, "config.json")
    gptq = config if "quantization_config" in config else _config(dump, "quantize_config.json")
    return list(_with_companions(stems, _mlx_config(config), _gptq_zero_offset(gptq)))


def _with_declared_quantization(dump: Dump, item: Parameter) -> Parameter:
    """A parameter of a capture with the quantization that the capture declares for it."""
    declared = declared_quantization(dump.facts, item.name) if dump.parameters else None
    if declared is None or not is_plausible_quantization(item.stored, declared):
        return item
    return replace(item, stored=Dequantized(item.stored, declared))


def _own_name(entry: Entry) -> str:
    if entry.port == PARAMETER_PORT:
        return entry.layer
    return entry.layer if entry.port == "output" else entry.name


def _parse(entry: Entry) -> Parameter:
    name = _own_name(entry)
    dotted = name.removeprefix("params/").replace("/", ".")
    if "/" in name:
        dotted = _FLAX_NUMBER.sub(r".\1", dotted)
    stem, dot, last = dotted.rpartition(".")
    if dot and last in _KINDS:
        return Parameter(name, stem, _KINDS[last], entry.stored)
    if dot and last in (*_COMPANIONS, *_PACKED):
        return Parameter(name, stem, last, entry.stored)
    return Parameter(name, dotted, "", entry.stored)


def _joined(parsed: Iterable[Parameter]) -> dict[str, dict[str, Parameter]]:
    """Parameters by stem and kind; parts on several devices are one parameter.

    If several would be the same (``gamma`` beside ``weight``, a whole beside its parts), the first is that one, and the
    others are parameters under their own names: none is left out.
    """
    stems: dict[str, dict[str, Parameter]] = defaultdict(dict)
    shards: dict[tuple[str, str], list[Parameter]] = defaultdict(list)
    for item in parsed:
        whole = _SHARD.sub("", item.stem)
        if whole != item.stem:
            shards[whole, item.kind].append(item)
        elif item.kind in stems[item.stem]:
            stems[item.name][""] = replace(item, stem=item.name, kind="")
        else:
            stems[item.stem][item.kind] = item
    for (stem, kind), parts in shards.items():
        if kind in stems[stem]:
            stems.update({part.name: {"": replace(part, stem=part.name, kind="")} for part in parts})
            continue
        parts.sort(key=lambda part: [int(number) for number in _SHARD.findall(part.stem)])
        first = replace(parts[0], name=_SHARD.sub("", parts[0].name), stem=stem)
        stems[stem][kind] = replace(first, shards=tuple(part.stored for part in parts) if len(parts) > 1 else ())
    return stems


def _with_companions(
    stems: Mapping[str, Mapping[str, Parameter]], declared: tuple[int, int] | None, zero_offset: int
) -> Iterator[Parameter]:
    for kinds in stems.values():
        weight = kinds.get("weight")
        if weight is None and (unpacked := _from_words(kinds, zero_offset)) is not None:
            yield unpacked
            yield from (item for kind, item in kinds.items() if kind not in (*_COMPANIONS, *_PACKED))
            continue
        made = _dequantized(weight, kinds, declared) if weight is not None else None
        for kind, item in kinds.items():
            if made is not None and kind == "weight":
                yield replace(item, stored=made)
            elif made is None or kind not in _COMPANIONS or kind == ACTIVATION_SCALE:
                yield item


def _dequantized(
    weight: Parameter, kinds: Mapping[str, Parameter], declared: tuple[int, int] | None
) -> StoredTensor | None:
    """A weight together with its scales; None if it has none, or scales of an unknown kind."""
    spec = weight.spec
    if name_of(spec.dtype) == "uint32" and "scales" in kinds:
        biases = kinds.get("biases")
        return mlx_packed(weight.stored, kinds["scales"].stored, biases.stored if biases else None, declared)
    if name_of(spec.dtype).startswith("float8"):
        scale = next((kinds[k] for k in ("weight_scale_inv", "weight_scale", "scale_inv") if k in kinds), None)
        if scale is not None and is_float(scale.spec.dtype):
            return fp8_scaled(weight.stored, scale.stored)
    if name_of(spec.dtype) == "int8" and "weight_scale" in kinds and _ZERO_POINT not in kinds:
        return int8_scaled(weight.stored, kinds["weight_scale"].stored)
    return None


def _from_words(kinds: Mapping[str, Parameter], zero_offset: int) -> Parameter | None:
    """The weight that GPTQ, AWQ or compressed-tensors keep in words; None if there is none, or one of another kind."""
    stored = {kind: item.stored for kind, item in kinds.items()}
    made = None
    if {"qweight", "qzeros", "scales"} <= stored.keys():
        groups = stored.get("g_idx")
        made = gptq_or_awq(stored["qweight"], stored["scales"], stored["qzeros"], groups, zero_offset)
    elif {"weight_packed", "weight_scale", "weight_shape"} == stored.keys() & {*_PACKED, *_COMPANIONS}:
        made = compressed(stored["weight_packed"], stored["weight_scale"], stored["weight_shape"])
    if made is None:
        return None
    first = kinds["qweight" if "qweight" in kinds else "weight_packed"]
    return replace(first, name=f"{first.stem}.weight", kind="weight", stored=made)


def _gptq_zero_offset(config: Mapping[str, object]) -> int:
    """What is added to a stored zero point: version 1 of GPTQ, which most checkpoints use, stores it less one."""
    declared = config.get("quantization_config", config)  # the whole of AutoGPTQ's quantize_config.json
    version = declared.get("checkpoint_format") if isinstance(declared, dict) else None
    return 0 if version == "gptq_v2" else 1


def _mlx_config(config: Mapping[str, object]) -> tuple[int, int] | None:
    """Bits and group size, from the config beside an MLX checkpoint."""
    declared = config.get("quantization")
    if not isinstance(declared, dict):
        return None
    bits, group = declared.get("bits"), declared.get("group_size")
    return (bits, group) if type(bits) is int and type(group) is int else None


def _config(dump: Dump, name: str) -> Mapping[str, object]:
    """A config beside a checkpoint; empty if there is none."""
    folder = dump.path if dump.path.is_dir() else dump.path.parent
    path = folder / name
    try:
        text = map_file(path)  # does not wait if it is a pipe
        config = parse_json(text[:], path, "it") if len(text) <= _CONFIG_BYTES else None
    except BadFile:
        return {}
    return config if isinstance(config, dict) else {}


def why_unreadable(item: Parameter) -> str | None:
    """Why a parameter's header cannot be trusted; None if it can."""
    try:
        _ = item.spec
    except DumpError as error:
        return str(error)
    return None


def is_packed(item: Parameter) -> bool:
    """Whether it holds integers of a quantization that is not read."""
    return item.kind in (*_PACKED, *_COMPANIONS) or (item.kind == "weight" and item.spec.dtype.kind in "iu")


def by_canonical(items: Sequence[Parameter]) -> dict[tuple[str, str], Parameter]:
    """Parameters by canonical stem and kind; the first of two that would be the same."""
    by_name: dict[tuple[str, str], Parameter] = {}
    for item in items:
        by_name.setdefault((item.canonical, item.kind), item)
    return by_name
