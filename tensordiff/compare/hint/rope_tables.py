"""Rotary position tables that differ in base, scaling, positions or precision.

A table is recognized by its values: cosines and sines of the same angles, whose squares add up to the same number
everywhere. Its frequencies follow from neighbouring positions, so the configuration need not be known.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.hint import Evidence, Hint
from tensordiff.compare.hint.sample import Floats, listed
from tensordiff.compare.hint.surroundings import Surroundings, arrays_of, floats_of
from tensordiff.compare.judge.verdict import UNITS, floor_for
from tensordiff.dump.dtypes import name_of

Complex = NDArray[np.complex128]
_POSITIONS = re.compile(r"position|timestep|cache_position")
_FURTHEST = 512  # largest position offset that is tried
_CLEARLY = 0.1  # share of the difference that an explanation may leave


class _Table:
    """Both sides of a table as complex numbers, [rows, tokens, frequencies], and its positions."""

    def __init__(self, ref: Complex, cand: Complex, positions: Floats, unit: float) -> None:
        self.ref, self.cand, self.positions, self.unit = ref, cand, positions, unit

    @property
    def noise(self) -> float:
        """An upper bound on what rounding may leave of a cosine."""
        return 4 * self.unit

    def explains(self, made: Complex) -> bool:
        """Whether the candidate clearly equals ``made``, up to rounding."""
        rest = float(np.sqrt(np.square(np.abs(self.cand - made)).mean()))
        whole = float(np.sqrt(np.square(np.abs(self.cand - self.ref)).mean()))
        return rest <= max(_CLEARLY * whole, min(self.noise, 0.3 * whole))


def rope_table(around: Surroundings) -> Hint | None:
    """Recognize what differs, if the row is a table of rotary positions."""
    table = _table_of(around)
    if table is None:
        return None
    sizes = [float(np.abs(side).mean()) for side in (table.ref, table.cand)]
    if abs(sizes[1] / sizes[0] - 1) > 4 * table.unit:
        return _other_size(table, sizes)
    frequencies = _frequencies(table.ref, table.positions)
    if frequencies is None:
        frequencies = _known_frequencies(around)
    if frequencies is None or len(frequencies) != table.ref.shape[-1]:
        return None
    return (
        _by_offset(table, frequencies)
        or _by_precision(table, frequencies)
        or _by_frequencies(table, frequencies, _frequencies(table.cand, table.positions))
    )


def _table_of(around: Surroundings) -> _Table | None:
    """The table that a call returned, cosine first; None if its outputs are not a table."""
    pairs = [pair for pair in around.outputs if pair.reference.call_key == around.row.pair.reference.call_key]
    sides = [found for pair in pairs if (found := floats_of(pair)) is not None]
    if len(pairs) != 2 or len(sides) != 2 or sides[0][0].shape != sides[1][0].shape or sides[0][0].ndim < 2:
        return None
    (cos_ref, cos_cand), (sin_ref, sin_cand) = sides
    shape = cos_ref.shape
    ref, cand = (
        _without_repeats((cos + 1j * sin).reshape(-1, *shape[-2:]))
        for cos, sin in ((cos_ref, sin_ref), (cos_cand, sin_cand))
    )
    if ref.shape != cand.shape or not (_is_table(ref) and _is_table(cand)):
        return None
    dtypes = around.row.computed_in or around.row.dtypes or ("float32", "float32")
    unit = UNITS.get(floor_for(*dtypes)[0], UNITS["float32"])
    positions = _positions(around, ref.shape[:2])
    return None if positions is None else _Table(ref, cand, positions, max(unit, 2.0**-22))


def _without_repeats(table: Complex) -> Complex:
    """The table without the repetition for halves or for neighbouring channels."""
    half = table.shape[-1] // 2
    if table.shape[-1] % 2 == 0 and half:
        if np.array_equal(table[..., :half], table[..., half:]):
            return table[..., :half]
        if np.array_equal(table[..., 0::2], table[..., 1::2]):
            return table[..., 0::2]
    return table


def _is_table(table: Complex) -> bool:
    sizes = np.abs(table)
    return bool(sizes.min() > 0 and sizes.max() / sizes.min() < 1.02)


def _positions(around: Surroundings, shape: tuple[int, int]) -> Floats | None:
    """The positions if they were dumped and are equal on both sides; 0, 1, 2, … if they were not dumped."""
    for pair in around.inputs(_POSITIONS):
        sides = arrays_of(pair)
        if sides is None or any(side.dtype.kind not in "iu" for side in sides) or sides[0].size % shape[1]:
            continue
        if not np.array_equal(*sides):
            return None  # the error is before the table
        rows = sides[0].reshape(-1, shape[1]).astype(np.float64)
        return np.broadcast_to(rows, shape) if len(rows) in (1, shape[0]) else None
    return np.broadcast_to(np.arange(shape[1], dtype=np.float64), shape)


def _frequencies(table: Complex, positions: Floats) -> Floats | None:
    """The angle of one step for each frequency: first from neighbours, then refined from positions further apart."""
    found: Floats | None = None
    gap = 1
    while gap < table.shape[1]:
        by = positions[:, gap:] - positions[:, :-gap]
        turned = (table[:, gap:] * table[:, :-gap].conj())[by == gap]
        if len(turned):
            angles = np.angle(turned.mean(0))
            if found is None:
                if gap > 1:
                    return None
                found = angles
            else:
                found = found + (np.angle(np.exp(1j * (angles - found * gap)))) / gap
        gap *= 2
    return found


def _known_frequencies(around: Surroundings) -> Floats | None:
    """The frequencies of the reference's table in another step that has several tokens."""
    entry = around.row.pair.reference
    pairs = list(around.pairs.where(lambda other: other.layer == entry.layer and other.call == entry.call))
    for step in sorted({pair.reference.step for pair in pairs} - {entry.step}):
        outputs = [p for p in pairs if p.reference.step == step and not p.reference.is_input]
        sides = [found for pair in outputs if (found := floats_of(pair)) is not None]
        if len(sides) == 2 and sides[0][0].shape == sides[1][0].shape and sides[0][0].shape[-2] > 1:
            whole = (sides[0][0] + 1j * sides[1][0]).reshape(-1, *sides[0][0].shape[-2:])
            table = _without_repeats(whole[-1:])  # the last row, since the first rows of a batch may be padded
            return _frequencies(table, np.arange(table.shape[1], dtype=np.float64)[None])
    return None


def _other_size(table: _Table, sizes: list[float]) -> Hint | None:
    factor = sizes[1] / sizes[0]
    if not table.explains(factor * table.ref):
        return None
    told = f"cosines and sines are {factor:.6g} times as long ({sizes[1]:.6g} for {sizes[0]:.6g})"
    evidence: Evidence = {"factor": factor, "reference": sizes[0], "candidate": sizes[1]}
    return Hint("rope_scaling", f"{told}: the attention factor of a scaled rope (yarn, longrope)", evidence)


def _by_offset(table: _Table, frequencies: Floats) -> Hint | None:
    """Each row of the candidate is that of positions further on or further back."""
    offsets = [_offset(table, row, frequencies) for row in range(len(table.ref))]
    known = [offset for offset in offsets if offset is not None]
    if len(known) != len(offsets) or not any(known):
        return None
    moved = [row for row, offset in enumerate(known) if offset]
    made = table.ref * np.exp(1j * np.array(known)[:, None, None] * frequencies)
    if not table.explains(made):
        return None
    rows = "" if len(moved) == len(known) else f" in row{'s' if len(moved) > 1 else ''} {listed(moved)} of {len(known)}"
    by = sorted({known[row] for row in moved})
    told = f"{listed([abs(one) for one in by])} position{'s' if by != [1] and by != [-1] else ''}"
    way = "further on" if min(by) > 0 else "further back" if max(by) < 0 else "away"
    evidence: Evidence = {"rows": moved, "offsets": by}
    return Hint("position_offset", f"the candidate's table is that of {told} {way}{rows}", evidence)


def _offset(table: _Table, row: int, frequencies: Floats) -> int | None:
    """The position offset of one row of the candidate; None if no offset explains it."""
    ref, cand = table.ref[row], table.cand[row]
    if float(np.abs(cand - ref).max()) <= 4 * table.noise:
        return 0
    turned = (cand * ref.conj()).mean(0)
    tries = np.arange(-_FURTHEST, _FURTHEST + 1)
    rest = np.abs(turned - np.abs(turned) * np.exp(1j * tries[:, None] * frequencies)).max(1)
    best = int(rest.argmin())
    is_alone = np.sort(rest)[1] > 3 * rest[best] + 4 * table.noise
    return int(tries[best]) if rest[best] <= 8 * table.noise and is_alone else None


def _by_precision(table: _Table, frequencies: Floats) -> Hint | None:
    """Frequencies or angles were rounded to 16 bits before the cosine was taken."""
    size = float(np.abs(table.ref).mean())
    exact = np.exp(1j * table.positions[..., None] * frequencies)
    turn = (table.ref / size * exact.conj()).mean((0, 1))  # the contribution of an unknown first position
    for name in ("bfloat16", "float16"):
        short = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[name]
        rounded = frequencies.astype(short)
        angles = table.positions[..., None] * rounded.astype(np.float64)
        both = (table.positions[..., None].astype(short) * rounded).astype(np.float64)
        for what, made in (("frequencies", angles), ("angles", both)):
            if table.explains(size * np.exp(1j * made) * turn) and not _is_same(table, made, exact):
                told = f"{what} of the candidate's table were rounded to {name} before their cosine was taken"
                evidence: Evidence = {"type": name, "what": what, "furthest": float(table.positions.max())}
                return Hint("rope_precision", f"{told}: at position {table.positions.max():.0f} that shows", evidence)
    return None


def _is_same(table: _Table, angles: Floats, exact: Complex) -> bool:
    return float(np.abs(np.exp(1j * angles) - exact).max()) <= 2 * table.noise


def _by_frequencies(table: _Table, ref: Floats, cand: Floats | None) -> Hint | None:
    """The candidate has other frequencies, and its table follows from them."""
    if cand is None or len(cand) < 4:
        return None
    size, turned = float(np.abs(table.ref).mean()), table.positions - table.positions[:, :1]
    made = table.cand[:, :1] * np.exp(1j * turned[..., None] * cand)
    if not table.explains(made) or float(np.abs(made - table.cand).max()) > 0.2 * size:
        return None
    error = table.noise / max(1.0, float(np.ptp(table.positions)))
    if (ref <= 0).any() or (cand <= 0).any():
        return None
    bases = [_base(side, error) for side in (ref, cand)]
    if bases[0] and bases[1] and abs(bases[1] / bases[0] - 1) > 0.02:
        evidence: Evidence = {"reference": bases[0], "candidate": bases[1]}
        told = f"the base of the rotary frequencies (rope_theta) is {bases[1]:.4g}, in the reference {bases[0]:.4g}"
        return Hint("rope_theta", told, evidence)
    told_of = ref > 16 * error
    ratios = (cand / ref)[told_of]
    off = np.abs(ratios - 1) > 4 * (error / ref[told_of]) + 1e-3
    if not off.any():
        return None
    evidence = {"lowest": float(ratios.min()), "highest": float(ratios.max()), "frequencies": int(off.sum())}
    if len(ratios) < 4:
        return None
    if np.ptp(ratios) < 0.02 and abs(ratios.mean() - 1) > 0.05:
        told = (
            f"all rotary frequencies are {ratios.mean():.4g} times the reference's: a linear scaling on one side only"
        )
        return Hint("rope_scaling", told, evidence)
    if bool(bases[0]) == bool(bases[1]) or off[0] or np.abs(ratios - 1).max() < 0.05:
        return None  # neither side, or both, follow one base, so the scaling cannot be told
    one = "candidate" if bases[1] else "reference"
    told = f"{int(off.sum())} of {len(off)} rotary frequencies differ, {ratios.min():.4g} to {ratios.max():.4g} times"
    return Hint("rope_scaling", f"{told} the reference's: those of the {one} are not scaled (llama3, yarn)", evidence)


def _base(frequencies: Floats, error: float) -> float:
    """The base of which all frequencies are powers, beginning with 1; 0 if there is none."""
    places = np.arange(len(frequencies)) / len(frequencies)
    use = frequencies > 16 * error
    use[0] = False
    if use.sum() < 2 or abs(frequencies[0] - 1) > 0.01:
        return 0.0
    slopes = -np.log(frequencies[use]) / places[use]
    slope = float(np.median(slopes))
    off = np.abs(np.exp(-slope * places[use]) / frequencies[use] - 1)
    return float(np.exp(slope)) if (off <= 0.01 + 4 * error / frequencies[use]).all() else 0.0


def lost_partial(around: Surroundings) -> Hint | None:
    """The tables have different widths: one side rotates all channels of a head, the other only some."""
    outputs = [pair for pair in around.outputs if not pair.reference.is_input]
    if len(outputs) != 2 or re.search(r"rot|rope", around.layer, re.IGNORECASE) is None:
        return None
    widths = {(pair.reference.spec.shape[-1], pair.candidate.spec.shape[-1]) for pair in outputs}
    rest = {(pair.reference.spec.shape[:-1], pair.candidate.spec.shape[:-1]) for pair in outputs}
    if len(widths) != 1 or any(one != other for one, other in rest):
        return None
    (ref, cand) = next(iter(widths))
    if ref == cand or not all(name_of(pair.reference.spec.dtype).startswith(("float", "bfloat")) for pair in outputs):
        return None
    told = f"the candidate's table has {cand} channels, the reference's {ref}: another share of a head is rotated"
    evidence: Evidence = {"reference": int(ref), "candidate": int(cand)}
    return Hint("rope_partial", f"{told} (partial_rotary_factor)", evidence)
