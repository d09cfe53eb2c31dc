"""Which parameter of the candidate corresponds to which of the reference.

The steps, each on what the earlier ones left: the user's maps; names that rules and presets make equal; parts that one
side fuses (q, k and v; gate and up; experts in one stack); equal values; rules learned from these, for layers whose
values differ; an embedding that is also the head. What remains is missing or unexpected, and a finding.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.align.index import Index
from tensordiff.align.maps import mapped
from tensordiff.align.match import AlignmentPlan, PairedBy
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import RuleSet, Side
from tensordiff.dump.model import Dump, Entry, StoredTensor
from tensordiff.dump.names import NUMBER_PART, natural_key
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.layouts import fit_shapes, with_conventions
from tensordiff.weights.parameters import (
    ACTIVATION_SCALE,
    Parameter,
    by_canonical,
    is_packed,
    parameters_of,
    why_unreadable,
)
from tensordiff.weights.samples import SampleIndex, are_alike, is_telling, sample, sample_or_none, slack_of
from tensordiff.weights.sides import ParameterPair, SideView
from tensordiff.weights.views import Concatenated, Stacked, Transposed

_EXPERT = re.compile(r"^(.*\.experts)\.(\d{1,9})\.([^.]+)$")
_PARTS = (
    ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("wq", "wk", "wv"), ("q", "k", "v"),
    ("gate_proj", "up_proj"), ("w1", "w3"),
)  # fmt: skip
_OF_ATTENTION = re.compile(r"qkv|query_key_value|c_attn|W_pack|in_proj", re.IGNORECASE)
_OF_GATE = re.compile(r"gate_up|gate_and_up|w13|w1_w3|c_fc|gate_up_proj|h_to_4h")
_MOST_BY_VALUE = 4000
_PACKED = "is packed by a quantization that is not read; compare a checkpoint that is not quantized so"
_ALONE = "is a scale of activations, which the other side does not have"
_ROPE_NAMES = re.compile(r"\.self_attn\.w([qk])$")


@dataclass(frozen=True)
class LearnedName:
    """A rule that values proved in some layers: these two names are the same parameter."""

    reference: str
    candidate: str
    proofs: int


@dataclass(frozen=True)
class Pairing:
    """All pairs, and what has none."""

    pairs: tuple[ParameterPair, ...]
    missing: tuple[Parameter, ...] = ()
    unexpected: tuple[Parameter, ...] = ()
    derived: tuple[Parameter, ...] = ()
    """Parameters that only one side has and that the model computes itself."""
    training: tuple[Parameter, ...] = ()
    """State of an optimizer that only one side keeps."""

    unread: tuple[tuple[Side, Parameter, str], ...] = ()
    """What could not be read, and why."""
    learned: tuple[LearnedName, ...] = ()
    reference: tuple[Parameter, ...] = field(default=(), repr=False)
    candidate: tuple[Parameter, ...] = field(default=(), repr=False)


def pair_parameters(reference: Dump, candidate: Dump, rules: RulesFile | None = None) -> Pairing:
    """Pair the parameters of two checkpoints."""
    ours, theirs = parameters_of(reference), parameters_of(candidate)
    plan = AlignmentPlan.for_dumps(_by_stem(reference, ours), _by_stem(candidate, theirs), rules)
    matcher = _Matcher(_named(ours, plan.rules, "reference"), _named(theirs, plan.rules, "candidate"))
    matcher.take_maps(plan)
    matcher.take_named()
    matcher.leave_packed()
    matcher.take_fused()
    matcher.take_experts()
    matcher.take_by_value()
    matcher.take_learned()
    matcher.take_tied()
    is_permuted = any("gguf" in dump.format for dump in (reference, candidate)) or matcher.has_original_names
    return matcher.pairing(is_permuted)


def _by_stem(dump: Dump, items: Sequence[Parameter]) -> Dump:
    """A dump whose layers are stems; presets are chosen by these."""
    entries = tuple(Entry(item.name, item.stem, "output", 1, 0, item.stored) for item in items)
    return replace(dump, entries=entries, parameters=())


def _named(items: Iterable[Parameter], rules: RuleSet, side: Side) -> list[Parameter]:
    """Parameters with canonical names; what only parameters call differently is renamed here."""
    named = []
    for item in items:
        name = _ROPE_NAMES.sub(r".self_attn.\1_proj", rules.canonical(item.stem, side))
        named.append(replace(item, canonical=name.replace(".switch_mlp.", ".experts.")))  # MLX's stacks of experts
    return named


class _Matcher:
    """The pairs found so far, and what is left on each side."""

    def __init__(self, reference: list[Parameter], candidate: list[Parameter]) -> None:
        self.all = reference, candidate
        self.unread: list[tuple[Side, Parameter, str]] = []
        self.reference, self.candidate = self._readable("reference"), self._readable("candidate")
        self.pairs: list[ParameterPair] = []
        self.learned: list[LearnedName] = []

    def _readable(self, side: Side) -> list[Parameter]:
        """The parameters of a side whose headers can be trusted; the others are reported."""
        readable = []
        for item in self.all[0 if side == "reference" else 1]:
            if why := why_unreadable(item):
                self.unread.append((side, item, why))
            else:
                readable.append(item)
        return readable

    def leave_packed(self) -> None:
        """Report packed parameters that are not read, unless the other side has the same bits to compare.

        Parameters of the same name on the other side then do not count as missing: nobody knows.
        """
        sides: tuple[tuple[Side, list[Parameter]], ...] = (("reference", self.reference), ("candidate", self.candidate))
        packed = [(side, item) for side, items in sides for item in items if is_packed(item)]
        whys = {ACTIVATION_SCALE: _ALONE}
        self.unread += ((side, item, whys.get(item.kind, _PACKED)) for side, item in packed)
        stems = {item.canonical for _, item in packed}
        kept = [[i for i in items if not (i.canonical in stems and i.kind != "bias")] for _, items in sides]
        self.reference, self.candidate = kept

    @property
    def has_original_names(self) -> bool:
        """Whether a side orders rope's rows as Llama's original code does."""
        return any(re.search(r"\.w[qk]$", item.stem) for items in self.all for item in items)

    def take(self, reference: SideView, candidate: SideView, by: PairedBy, name: str = "") -> None:
        """Pair two sides, and use up the parameters they are made of."""
        title = name or (reference.parameters[0].title if len(reference.parameters) == 1 else
                         candidate.parameters[0].title)  # fmt: skip
        self.pairs.append(ParameterPair(title, reference, candidate, by))
        used = {id(item) for item in reference.parameters}, {id(item) for item in candidate.parameters}
        self.reference = [item for item in self.reference if id(item) not in used[0]]
        self.candidate = [item for item in self.candidate if id(item) not in used[1]]

    def take_many(self, found: Sequence[tuple[Parameter, Parameter, PairedBy]]) -> None:
        """Pair many single parameters at once."""
        self.pairs += [ParameterPair(r.title, SideView.of(r), SideView.of(c), by) for r, c, by in found]
        used = {id(item) for pair in found for item in pair[:2]}
        self.reference = [item for item in self.reference if id(item) not in used]
        self.candidate = [item for item in self.candidate if id(item) not in used]

    # --- names -----------------------------------------------------------------------------------

    def take_maps(self, plan: AlignmentPlan) -> None:
        """Pair by the user's maps, in canonical names: ``cat(a.weight, b.weight)``."""
        if not plan.maps:
            return
        by_id: dict[int, Parameter] = {}
        ours_by_name = Index(_as_dump(self.reference, by_id), RuleSet(()), "reference")
        theirs_by_name = Index(_as_dump(self.candidate, by_id), RuleSet(()), "candidate")
        for ours, theirs in mapped(plan.maps, ours_by_name, theirs_by_name):
            views = [SideView.computed(entry, by_id) for entry in (ours, theirs)]
            self.take(views[0], views[1], "map")

    def take_named(self) -> None:
        """Pair names that are equal after the rules; a bare name also matches a weight's."""
        theirs = by_canonical(self.candidate)
        pairs: list[tuple[Parameter, Parameter, PairedBy]] = []
        taken: set[int] = set()
        for item in self.reference:
            kinds = (item.kind, *(k for k in ("", "weight") if item.kind in ("", "weight")))
            other = next((theirs[item.canonical, k] for k in kinds if (item.canonical, k) in theirs), None)
            if other is not None and id(other) not in taken and is_packed(item) == is_packed(other):
                taken.add(id(other))
                pairs.append((item, other, "name" if item.name == other.name else "rule"))
        self.take_many(pairs)

    # --- parts -----------------------------------------------------------------------------------

    def take_fused(self) -> None:
        """Pair q, k and v with one tensor, gate and up with one; either side may be the one that fuses."""
        for is_swapped in (False, True):
            parts_side, whole_side = (
                (self.candidate, self.reference) if is_swapped else (self.reference, self.candidate)
            )
            for parts, whole in list(_fusions(parts_side, whole_side)):
                sides = SideView.cat(parts), SideView.of(whole)
                self.take(*(sides[::-1] if is_swapped else sides), "fused", whole.title)

    def take_experts(self) -> None:
        """Pair single experts with a stack of them."""
        for is_swapped in (False, True):
            singles, stacks = (self.candidate, self.reference) if is_swapped else (self.reference, self.candidate)
            for view, stack in list(_stacks(singles, stacks)):
                sides = view, SideView.of(stack)
                self.take(*(sides[::-1] if is_swapped else sides), "fused", stack.title)

    # --- values ----------------------------------------------------------------------------------

    def take_by_value(self) -> None:
        """Pair what is left, if values are equal and no other parameter has them."""
        ours, theirs = self.reference[:_MOST_BY_VALUE], self.candidate[:_MOST_BY_VALUE]
        if not ours or not theirs:
            return
        index = _ValueIndex(theirs)
        taken: set[int] = set()
        for item in ours:
            equal = [other for other in index.near(item) if id(other) not in taken and hold_the_same(item, other)]
            same_numbers = [other for other in equal if _numbers(other) == _numbers(item)] or equal
            if len(same_numbers) == 1:
                taken.add(id(same_numbers[0]))
                self.take(SideView.of(item), SideView.of(same_numbers[0]), "value")

    def take_learned(self) -> None:
        """Apply to the other layers what values proved in some."""
        proofs: Counter[tuple[str, str]] = Counter()
        for pair in self.pairs:
            if pair.by == "value" and len(pair.reference.parameters) == len(pair.candidate.parameters) == 1:
                one, other = pair.reference.parameters[0], pair.candidate.parameters[0]
                if _numbers(one) == _numbers(other):
                    proofs[_template(one), _template(other)] += 1
        theirs = {(_template(item), _numbers(item)): item for item in self.candidate}
        pairs: list[tuple[Parameter, Parameter, PairedBy]] = []
        for (ours, mine), count in proofs.items():
            if any(ours == a and mine != b for a, b in proofs):
                continue  # values prove two names for one: neither is a rule
            self.learned.append(LearnedName(ours, mine, count))
            for item in self.reference:
                match = theirs.get((mine, _numbers(item))) if _template(item) == ours else None
                if match is not None and sorted(match.spec.shape) == sorted(item.spec.shape):
                    pairs.append((item, match, "learned"))
        self.take_many(pairs)

    def take_tied(self) -> None:
        """Pair a head that one side lacks with its embedding; the same for the embeddings of T5's two halves."""
        for is_swapped in (False, True):
            whole, other = (self.candidate, self.all[0]) if is_swapped else (self.reference, self.all[1])
            embedding = next((item for item in other if item.is_embedding), None)
            if embedding is None:
                continue
            for item in [item for item in whole if item.kind != "bias" and (item.is_head or item.is_embedding)]:
                if item.spec.shape[1:] == embedding.spec.shape[1:]:
                    sides = SideView.of(item), SideView((embedding,), embedding.stored, embedding.name, ("tied",))
                    self.take(*(sides[::-1] if is_swapped else sides), "value", item.title)

    def pairing(self, is_permuted: bool) -> Pairing:
        """All pairs in natural order, in shapes that fit and by the conventions of the formats.

        The order in a file says nothing: shards are filled as parameters arrive.
        """
        in_order = sorted(self.pairs, key=lambda pair: natural_key(pair.name))
        fitting = [fit_shapes(pair) for pair in in_order]
        left = (*self.reference, *self.candidate)
        training = [item for item in left if item.is_training_state]
        derived = [item for item in left if item.is_derived and not item.is_training_state]
        ignored = {id(item) for item in (*derived, *training)}
        return Pairing(
            pairs=tuple(with_conventions(fitting, is_permuted)),
            missing=tuple(item for item in self.reference if id(item) not in ignored),
            unexpected=tuple(item for item in self.candidate if id(item) not in ignored),
            derived=tuple(derived), training=tuple(training), unread=tuple(self.unread), learned=tuple(self.learned),
            reference=tuple(self.all[0]), candidate=tuple(self.all[1]),
        )  # fmt: skip


def _as_dump(items: Iterable[Parameter], by_id: dict[int, Parameter]) -> Dump:
    entries = []
    for item in items:
        entry = Entry(item.title, item.title, "output", 1, 0, item.stored)
        by_id[id(entry)] = item
        entries.append(entry)
    return Dump(Path(), "", tuple(entries), False)


class _ValueIndex:
    """Parameters of one side, by their values, as they are and transposed."""

    def __init__(self, items: Sequence[Parameter]) -> None:
        self._views: dict[tuple[int, ...], list[tuple[Parameter, StoredTensor]]] = defaultdict(list)
        for item in items:
            shape = item.spec.shape
            self._views[shape].append((item, item.stored))
            if len(shape) == 2:
                self._views[shape[::-1]].append((item, Transposed(item.stored)))
        self._indexes: dict[tuple[int, ...], SampleIndex] = {}

    def near(self, item: Parameter) -> list[Parameter]:
        """Those that may hold the same values, each once."""
        shape = item.spec.shape
        views = self._views.get(shape)
        wanted = sample_or_none(item.stored) if views else None
        if views is None or wanted is None or not is_telling(wanted):
            return []
        if shape not in self._indexes:
            coarsest = max(slack_of(stored) for _, stored in views)
            self._indexes[shape] = SampleIndex([sample_or_none(stored) for _, stored in views], coarsest)
        holders = (views[k][0] for k in self._indexes[shape].near(wanted, slack_of(item.stored)))
        return list({id(other): other for other in holders}.values())


def hold_the_same(one: Parameter, other: Parameter) -> bool:
    """Whether samples of two parameters are the same values, one of them perhaps transposed."""
    a, b = one.spec.shape, other.spec.shape
    try:
        first = sample(one.stored)
        if not is_telling(first):
            return False
        slack = slack_of(one.stored, other.stored)
        if a == b and are_alike(sample(other.stored), first, slack):
            return True
        if len(a) == 2 and a == b[::-1]:
            return are_alike(sample(Transposed(other.stored)), first, slack)
    except (DumpError, AlignError):
        return False
    return False


def _numbers(item: Parameter) -> tuple[str, ...]:
    return tuple(NUMBER_PART.findall(item.canonical))


def _template(item: Parameter) -> str:
    return f"{NUMBER_PART.sub('{i}', item.canonical)}{'.' + item.kind if item.kind else ''}"


def _fusions(parts_of: Sequence[Parameter], wholes: Sequence[Parameter]) -> Iterator[tuple[list[Parameter], Parameter]]:
    """Parts that have no pair, and the one parameter whose size they fill."""
    left = {(item.canonical, item.kind): item for item in parts_of}
    free: dict[tuple[tuple[str, ...], str], list[Parameter]] = defaultdict(list)
    for item in wholes:
        free[_numbers(item), item.kind].append(item)
    taken: set[int] = set()
    for item in parts_of:
        parent, _, last = item.canonical.rpartition(".")
        for names in _PARTS:
            if last != names[0]:
                continue
            parts = [left[key] for name in names if (key := (f"{parent}.{name}", item.kind)) in left]
            if len(parts) < len(names):
                continue
            kinds = (item.kind, "") if item.kind == "weight" else (item.kind,)
            near = [
                w
                for kind in kinds
                for w in free[_numbers(item), kind]
                if id(w) not in taken and _has_room_for(w, parts)
            ]
            named = _OF_ATTENTION if len(names) == 3 else _OF_GATE
            near = [w for w in near if named.search(w.canonical)] or near
            if len(near) == 1:
                taken.add(id(near[0]))
                yield parts, near[0]


def _has_room_for(whole: Parameter, parts: Sequence[Parameter]) -> bool:
    """Whether a parameter has as many rows as its parts together; for a ``Conv1D``, as many columns."""
    shape, first = whole.spec.shape, parts[0].spec.shape
    if any(len(part.spec.shape) != len(first) or part.spec.shape[1:] != first[1:] for part in parts):
        return False
    rows = sum(part.spec.shape[0] for part in parts)
    return shape in ((rows, *first[1:]), (*first[1:], rows))


def _stacks(singles: Sequence[Parameter], stacks: Sequence[Parameter]) -> Iterator[tuple[SideView, Parameter]]:
    """Experts by number, stacked into one tensor, and the stack of the same size."""
    experts: dict[tuple[str, str], dict[str, dict[int, Parameter]]] = defaultdict(lambda: defaultdict(dict))
    for item in singles:
        if match := _EXPERT.match(item.canonical):
            experts[match[1], item.kind][match[3]][int(match[2])] = item
    for (parent, _), by_name in experts.items():
        near = [item for item in stacks if item.canonical.startswith(f"{parent}.") and len(item.spec.shape) == 3]
        for stack in near:
            if view := _stack_of(by_name, stack):
                yield view, stack


def _stack_of(by_name: dict[str, dict[int, Parameter]], stack: Parameter) -> SideView | None:
    last = stack.canonical.rpartition(".")[2]
    name = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "w2_weight": "down_proj"}.get(last, last)
    if name in by_name:
        return _stack_view([[item] for _, item in sorted(by_name[name].items())])
    if _OF_GATE.search(last) and {"gate_proj", "up_proj"} <= set(by_name):
        gates, ups = by_name["gate_proj"], by_name["up_proj"]
        if gates.keys() == ups.keys():
            return _stack_view([[gates[k], ups[k]] for k in sorted(gates)])
    return None


def _stack_view(experts: Sequence[Sequence[Parameter]]) -> SideView | None:
    shapes = {tuple(item.spec.shape for item in parts) for parts in experts}
    if len(shapes) != 1:
        return None
    tensors: list[StoredTensor] = [
        parts[0].stored if len(parts) == 1 else Concatenated(tuple(item.stored for item in parts)) for parts in experts
    ]
    everything = tuple(item for parts in experts for item in parts)
    first = " + ".join(item.name for item in experts[0])
    return SideView(everything, Stacked(tuple(tensors)), f"{first} … of {len(experts)} experts", ("stacked",))
