"""Aligning 2,000 and 2,000 entries: by rules, and by values where one side's names say nothing; and learning rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.timing import best_of
from tensordiff.align import AlignmentPlan, align
from tensordiff.align.index import Index
from tensordiff.align.learn import learn
from tensordiff.align.suggest import Suggester, accept
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, MemoryTensor, entry
from tensordiff.util.garbage_collector import gc_paused

LAYERS = 200
PARTS = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.act_fn")  # fmt: skip


def dumps(prefix: str, noise: float, *, scrambled: bool = False) -> Dump:
    """One side: 200 layers of ten outputs, 16 tokens of 256 channels."""
    rng, error = np.random.default_rng(0), np.random.default_rng(1)
    names = [f"{prefix}{layer}.{part}-output" for layer in range(LAYERS) for part in PARTS]
    if scrambled:
        names = [f"layer_{number:05d}-output" for number in np.random.default_rng(2).permutation(len(names))]
    arrays = (rng.standard_normal((16, 256), dtype=np.float32) for _ in names)
    noisy = (a + np.float32(noise) * error.standard_normal(a.shape, dtype=np.float32) for a in arrays)
    return Dump(
        Path("memory"), "memory", tuple(entry(n, MemoryTensor(a)) for n, a in zip(names, noisy, strict=True)), True
    )


def rows() -> list[list[str]]:
    """One row a way of aligning."""
    reference, candidate = dumps("model.model.layers.", 0), dumps("model.layers.layers.", 1e-7)
    unnamed = dumps("", 1e-7, scrambled=True)
    pairs = len(align(reference, candidate).pairs)
    found = 0

    def by_value() -> None:
        nonlocal found
        plan = AlignmentPlan.for_dumps(reference, unnamed)
        sides = Index(reference, plan.rules, "reference"), Index(unnamed, plan.rules, "candidate")
        suggester = Suggester(*sides, align(reference, unnamed, plan))
        found = len(accept(list(suggester.suggestions()), *sides))

    def rules_alone() -> None:
        rules = AlignmentPlan.for_dumps(reference, candidate).rules
        for side, dump in (("reference", reference), ("candidate", candidate)):
            for item in dump.entries:
                rules.canonical(item.layer, side)

    methods = {"rules": rules_alone, "whole": lambda: align(reference, candidate)}
    best = best_of(methods, 0.5) | best_of({"values": by_value}, 1.0, at_least=1)
    return [
        ["presets chosen, rules applied to all names", f"{best['rules'] * 1e3:.0f} ms", "50 ms"],
        [f"the whole alignment by rules, {pairs} pairs", f"{best['whole'] * 1e3:.0f} ms", "-"],
        [f"by value alone, {found} of {len(unnamed)} found, all names scrambled", f"{best['values']:.1f} s", "seconds"],
    ]


# --- learning ------------------------------------------------------------------------------------------


def learned_rows() -> list[list[str]]:
    """One row a size, names that repeat or do not, and where the values stop to agree."""
    return [
        _learned_row(count, repeats=repeats, healthy=healthy)
        for count in (2_000, 20_000)
        for repeats in (True, False)
        for healthy in (1.0, 0.5)
    ]


def _learned_row(count: int, *, repeats: bool, healthy: float) -> list[str]:
    reference, candidate = _renamed(count, repeats=repeats, healthy=healthy)
    plan = AlignmentPlan.for_dumps(reference, candidate)
    sides = Index(reference, plan.rules, "reference"), Index(candidate, plan.rules, "candidate")
    alignment = align(reference, candidate, plan)
    found = len(align(reference, candidate, plan.with_learned(learn(*sides, alignment))).pairs)
    with gc_paused():  # as when two dumps are opened
        best = best_of({"learn": lambda: learn(*sides, alignment)}, 1.0, at_least=1)["learn"]
    names = "blocks that repeat" if repeats else "no name repeats"
    errors = "" if healthy == 1.0 else f", an error after {healthy:.0%}"
    return [
        f"{count:,} a side, {names}{errors}: {found:,} paired", f"{best:.2f} s", "1 s" if count == 2_000 else "5 s"
    ]  # fmt: skip


def _renamed(count: int, *, repeats: bool, healthy: float) -> tuple[Dump, Dump]:
    """Two sides that call the same tensors otherwise; beyond a share of them the candidate's have an error."""
    rng, layers = np.random.default_rng(0), count // len(PARTS)
    words = {part: f"unit{k}" for k, part in enumerate(PARTS)}
    ours = [f"net.layers.{layer}.{part}-output" for layer in range(layers) for part in PARTS]
    theirs = [f"engine.cell.{layer}.{words[part]}-output" for layer in range(layers) for part in PARTS]
    if not repeats:
        ours, theirs = ([f"{side}_{_letters(k)}-output" for k in range(count)] for side in ("our", "their"))
    arrays = [rng.standard_normal((4, 64), dtype=np.float32) for _ in ours]
    wrong = [
        a + (0.3 if k > healthy * count else 1e-7) * rng.standard_normal(a.shape, dtype=np.float32)
        for k, a in enumerate(arrays)
    ]
    return _dump(ours, arrays), _dump(theirs, [a.astype(np.float32) for a in wrong])


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**k % 26) for k in range(4))


def _dump(names: Sequence[str], arrays: Sequence[Array]) -> Dump:
    entries = tuple(entry(name, MemoryTensor(array)) for name, array in zip(names, arrays, strict=True))
    return Dump(Path("memory"), "memory", entries, True)
