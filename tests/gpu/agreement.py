"""Two dumps of the same model on two devices, held against each other tensor by tensor."""

from __future__ import annotations

import numpy as np

from tensordiff.dump import Dump
from tensordiff.dump.dtypes import Array

MOST = 1e-5
"""rel_l2 that another order of additions may leave; a copy that was read too early leaves far more, or NaN."""


def assert_same(one: Dump, other: Dump, most: float = MOST) -> None:
    """Every tensor of one dump is in the other, with the same values but for rounding."""
    ours, theirs = ({entry.key: entry.read() for entry in dump.entries} for dump in (one, other))
    assert ours and ours.keys() == theirs.keys()
    far = {key.name: error for key in ours if not (error := rel_l2(ours[key], theirs[key])) <= most}
    assert not far


def rel_l2(one: Array, other: Array) -> float:
    """The relative error of one array, NaN and infinity included."""
    assert one.shape == other.shape and one.dtype == other.dtype
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(wide).reshape(-1), other.astype(wide).reshape(-1)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    size = float(np.linalg.norm(a[np.isfinite(a)])) or 1.0
    return float(np.linalg.norm((b - a)[~same])) / size
