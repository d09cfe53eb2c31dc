"""Tensors held in memory, as a reader would give them: so that only measuring is measured."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Spec


class Held(NamedTuple):
    array: Array

    @property
    def spec(self) -> Spec:
        return Spec(self.array.shape, self.array.dtype)

    def read(self) -> Array:
        return self.array
