"""What to compare and how, as the user gave it on the command line, in a form of the app or in Python."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.align.rules.tables import ToleranceRule
from tensordiff.capture.settings import Settings
from tensordiff.compare.limits import Limits
from tensordiff.errors import AlignError, printable
from tensordiff.util.regex import check_regex

FILE_OPTIONS = ("rules", "golden", "injected", "tolerances", "session")
"""The fields that hold a path and are an option of the command line, beside the two sides."""


@dataclass(frozen=True)
class Request:
    """What to compare and how. It validates itself, so every way to create one refuses the same values."""

    reference: Path
    """A dump, or a source (``hf:…``) that has yet to be run; the same holds for ``candidate``."""
    candidate: Path
    _: KW_ONLY
    rules: Path | None = None
    golden: Path | None = None
    injected: Path | None = None
    tolerances: Path | None = None
    """A TOML file of ``[[tolerance]]`` tables. They come before those of ``rules``; the first match wins."""
    limits: Limits = field(default_factory=Limits)
    step: int | None = None
    only: str | None = None
    """A regular expression: pairs whose name it does not match are left out."""
    min_coverage: float = 50.0
    """The share of each side's outputs, in percent, that must be compared before agreement is reported."""
    cluster: str | None = None
    """The cluster whose workers measure: ``tcp://HOST:PORT`` or ``local:N``. None measures in this process."""
    learn: bool = True
    """Whether to learn rules from the values for entries that names do not pair."""
    allow_partial: bool = False
    """Whether an interrupted capture may agree."""
    session: Path | None = None
    """A session file, whose rules apply as if they were given again."""
    settings: Settings = field(default_factory=Settings)
    """How to run the sides that are sources."""
    candidate_settings: Settings | None = None
    """How to run the candidate, if that differs from the reference."""
    keep: Path | None = None
    """The folder for captured dumps; None for temporary folders, which are deleted when the process ends."""

    def __post_init__(self) -> None:
        if self.step is not None and self.step < 0:
            raise AlignError(f"step = {self.step}: steps are counted from 0")
        if not 0 <= self.min_coverage <= 100:  # false for NaN
            raise AlignError(f"min_coverage = {self.min_coverage:g}: is a share in percent, from 0 to 100")
        if self.only is not None:
            check_regex("--only", self.only)

    def with_candidate(self, path: Path) -> Request:
        """The same request for another run of the candidate, without the injected run, which belongs to the old
        candidate."""
        return replace(self, candidate=path, injected=None)

    def of_operations(self, reference: Path, candidate: Path) -> Request:
        """A request for the operations inside one layer, with the same rules and limits; ``only`` is dropped as it
        selects layers."""
        return replace(
            self, reference=reference, candidate=candidate, injected=None, golden=None, only=None, session=None
        )

    def limits_with(self, rules: RulesFile) -> Limits:
        """The limits with the tolerances by layer: those of the tolerances file first, then those of the rules."""
        return replace(self.limits, rules=(*_tolerance_rules(self.tolerances), *rules.tolerances))


def _tolerance_rules(path: Path | None) -> tuple[ToleranceRule, ...]:
    if path is None:
        return ()
    content = read_rules_file(path)
    if replace(content, tolerances=()) != RulesFile():
        raise AlignError(f"{printable(path)}: holds more than tolerances; give it with --rules, which takes all of it")
    if not content.tolerances:
        raise AlignError(f"{printable(path)}: holds no [[tolerance]], and would let anything pass; see docs/rules.md")
    return content.tolerances
