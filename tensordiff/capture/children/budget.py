"""What a dump may take (``--max-bytes``) and what was left out of it: one rule for every engine.

The beginning of a run is written without gaps: after the first tensor that does not fit, none is.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Budget:
    """Bytes that may be written, and how many tensors were not, by reason."""

    max_bytes: int | None = None
    wanted: int = 0
    """Bytes asked for so far, with those that did not fit."""
    left_out: dict[str, int] = field(default_factory=dict)

    def allows(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes more is written; where not, it is left out."""
        self.wanted += nbytes
        if self.max_bytes is None or self.wanted <= self.max_bytes:
            return True
        self.leave_out(f"--max-bytes {self.max_bytes} was reached")
        return False

    def leave_out(self, why: str) -> None:
        """Count a tensor that is not written."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def notes(self) -> list[str]:
        """What was left out, as sentences."""
        return [f"{count} tensors were left out: {why}" for why, count in self.left_out.items()]
