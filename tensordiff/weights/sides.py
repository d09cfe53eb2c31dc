"""One side of a pair of parameters: its parts, and the views applied to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensordiff.align.index import parts_of
from tensordiff.align.match import PairedBy
from tensordiff.dump.model import Entry, StoredTensor
from tensordiff.weights.parameters import Parameter
from tensordiff.weights.views import Concatenated


@dataclass(frozen=True, eq=False)
class SideView:
    """A parameter, or several as one."""

    parameters: tuple[Parameter, ...]
    stored: StoredTensor
    label: str
    """The parameter's own name, or an expression of several."""
    views: tuple[str, ...] = ()
    """The views applied to what its file has."""

    @classmethod
    def of(cls, item: Parameter) -> SideView:
        """A parameter as it is."""
        return cls((item,), item.stored, item.name)

    @classmethod
    def cat(cls, items: Sequence[Parameter]) -> SideView:
        """Several parameters, concatenated along the rows."""
        label = f"cat({', '.join(item.name for item in items)})"
        return cls(tuple(items), Concatenated(tuple(item.stored for item in items)), label, ("cat",))

    @classmethod
    def computed(cls, entry: Entry, by_id: Mapping[int, Parameter]) -> SideView:
        """The parameters that a map of the user names."""
        parts = tuple(by_id[id(part)] for part in parts_of(entry))
        return cls(parts, entry.stored, entry.name if len(parts) > 1 else parts[0].name)

    def with_view(self, stored: StoredTensor, view: str) -> SideView:
        """The same with one more view."""
        return SideView(self.parameters, stored, self.label, (*self.views, view))

    @property
    def part_rows(self) -> list[int]:
        """How many rows each of its parts has."""
        return [item.spec.shape[0] if item.spec.shape else 1 for item in self.parameters]


@dataclass(frozen=True, eq=False)
class ParameterPair:
    """A parameter of the reference and what is held to be the same on the candidate's side."""

    name: str
    reference: SideView
    candidate: SideView
    by: PairedBy
    extra_rows: int = 0
    """Rows that the candidate has more (or, below 0, less) than the reference: a vocabulary that is padded or cut."""
    mismatch: str = ""
    """Why the two cannot be compared element by element."""
    convention: str = ""
    """The layout of the others of its kind, if this one is viewed that way, too."""

    @property
    def views(self) -> list[str]:
        """The views applied to both sides."""
        return [*self.reference.views, *(f"candidate {view}" for view in self.candidate.views)]

    @property
    def is_tied(self) -> bool:
        """Whether one side has no such parameter, and its embedding takes its place."""
        return "tied" in self.reference.views or "tied" in self.candidate.views
