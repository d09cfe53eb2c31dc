"""Where the sample dumps are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.errors import NotADump
from tensordiff.session import samples
from tensordiff.session.samples import sample
from tests.making import SAMPLES


@pytest.mark.parametrize("name", ["reference", "candidate", "candidate_injected", "golden", "max"])
def test_in_a_checkout_they_lie_beside_the_package(name: str) -> None:
    assert sample(name) == SAMPLES / name


def test_when_installed_they_lie_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "tensordiff" / "sample_dumps" / "reference"
    inside.mkdir(parents=True)
    monkeypatch.setattr(samples, "__file__", str(tmp_path / "tensordiff" / "session" / "samples.py"))
    assert sample("reference") == inside


def test_one_that_is_not_there() -> None:
    with pytest.raises(NotADump, match="'nonsuch' is not installed"):
        sample("nonsuch")
