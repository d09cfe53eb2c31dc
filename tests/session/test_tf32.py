"""A reference in TF32: a finding, and a floor that its own errors do not cross."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.compare.judge.verdict import FLOORS
from tensordiff.compare.lint import lint_pair
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.session.request import Request
from tensordiff.session.session import Session

ON_GPU: dict[str, Any] = {"device": "cuda:0", "dtype": "float32"}
TF32 = ON_GPU | {"flags": {"tf32_matmul": True}}
CONVOLUTIONS = ON_GPU | {"flags": {"tf32_matmul": False, "tf32_cudnn": True}}
ERROR = FLOORS["tf32"].agrees / 2


def dump(folder: Path, error: float = 0.0, module_class: str = "Linear", **facts: Any) -> Path:
    """Two layers, the second off by an error."""
    random = np.random.default_rng(0)
    x, y, noise = (random.normal(size=(9, 64)).astype(np.float32) for _ in range(3))
    wrong = y + error * noise * np.linalg.norm(y) / np.linalg.norm(noise)
    with DumpWriter(folder, facts) as writer:
        writer.add("model.a-output", x, module_class="Linear")
        writer.add("model.b-input_0", x, module_class=module_class)
        writer.add("model.b-output", wrong, module_class=module_class)
    return folder


def verdicts(reference: Path, candidate: Path) -> tuple[str, str]:
    """The verdict of the second layer, and why."""
    session = Session.open(Request(reference, candidate))
    row = list(session.rows())[-1]
    return row.verdict.name, row.verdict.why


def test_its_own_rounding_is_no_error_of_the_candidate(tmp_path: Path) -> None:
    plain, tf32 = dump(tmp_path / "plain", **ON_GPU), dump(tmp_path / "tf32", **TF32)
    candidate = dump(tmp_path / "candidate", ERROR, dtype="float32")
    assert verdicts(tf32, candidate) == ("agrees", f"rel_l2 {ERROR:.1e} is rounding (tf32)")
    assert verdicts(plain, candidate)[0] == "diverges"


def test_a_candidate_is_not_believed(tmp_path: Path) -> None:
    plain, candidate = dump(tmp_path / "plain", **ON_GPU), dump(tmp_path / "candidate", ERROR, **TF32)
    assert verdicts(plain, candidate)[0] == "diverges"


def test_more_than_tf32_explains_is_an_error(tmp_path: Path) -> None:
    tf32, candidate = dump(tmp_path / "tf32", **TF32), dump(tmp_path / "candidate", 2 * FLOORS["tf32"].diverges)
    assert verdicts(tf32, candidate)[0] == "diverges"


@pytest.mark.parametrize(("module_class", "verdict"), [("Conv2d", "agrees"), ("Linear", "diverges")])
def test_where_only_convolutions_ran_in_it(tmp_path: Path, module_class: str, verdict: str) -> None:
    reference = dump(tmp_path / "reference", module_class=module_class, **CONVOLUTIONS)
    candidate = dump(tmp_path / "candidate", ERROR, module_class)
    assert verdicts(reference, candidate)[0] == verdict


def findings(reference: Path, candidate: Path) -> list[tuple[str, str]]:
    session = Session.open(Request(reference, candidate))
    found = lint_pair(session.reference, session.candidate, session.alignment)
    return [(finding.where, finding.what) for finding in found if "TF32" in finding.what]


def test_it_is_a_finding_of_either_side(tmp_path: Path) -> None:
    plain, tf32 = dump(tmp_path / "plain", **ON_GPU), dump(tmp_path / "tf32", **TF32)
    assert findings(plain, plain) == []
    assert findings(plain, tf32) == [("candidate", "its float32 matrix products ran in TF32")]
    (first, second) = findings(tf32, plain)
    assert first == ("reference", "its float32 matrix products ran in TF32")
    assert second[0] == "reference" and "counts as rounding: it ran in TF32" in second[1]
