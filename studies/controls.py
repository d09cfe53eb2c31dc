"""Clean controls beyond those that go with the bugs: other attention code, and real dumps of other engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from studies.captures import DUMPED, capture, write
from studies.models import Arch, build
from studies.trial import compare

CASES = Path(__file__).parents[2] / "shared" / "cases"
"""Dumps of Hugging Face and MAX on the same checkpoints, where they lie beside the checkout."""
SAMPLES = Path(__file__).parents[1] / "sample_dumps"


class Control(NamedTuple):
    """A pair of runs that should agree, and who is named as wrong; empty where nobody is."""

    what: str
    name: str
    named: str


def other_attention(arch: Arch, seed: int, folder: Path) -> Iterator[Control]:
    """Attention written out, against torch's own fused one, in the same type."""
    for dtype in ("float32", "bfloat16"):
        eager, fused = build(arch, seed, dtype, 4), build(arch, seed, dtype, 4)
        fused.model.set_attn_implementation("sdpa")
        runs = {"reference": capture(eager), "candidate": capture(fused)}
        for dumped in DUMPED:
            sides = [write(folder / side, found, eager, dumped) for side, found in runs.items()]
            yield Control(f"eager against fused attention, {dtype}", f"{arch.name}, {dumped}", _named(*sides))


def engines() -> Iterator[Control]:
    """Real dumps of Hugging Face and MAX, either way round."""
    pairs = [(case / "torch", case / "max") for case in sorted(CASES.glob("*/")) if (case / "max").is_dir()]
    for one, other in [*pairs, (SAMPLES / "reference", SAMPLES / "max")]:
        for sides in ((one, other), (other, one)):
            yield Control("Hugging Face against MAX", str(one.parent.name), _named(*sides))


def _named(reference: Path, candidate: Path) -> str:
    culprit = compare(reference, candidate)[1].culprit
    return culprit.pair.reference.layer if culprit else ""
