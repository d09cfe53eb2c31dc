"""``import tensordiff``: light, typed, documented by examples that run."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tensordiff
from tensordiff.errors import AlignError
from tests import processes
from tests.making import SAMPLES, numbers

A = numbers(3, 8)


@pytest.mark.parametrize(
    "module", ["tensordiff", "tensordiff.library.comparison", "tensordiff.library.alignment",
               "tensordiff.library.bisection", "tensordiff.testing"],
)  # fmt: skip
def test_the_examples_run(module: str) -> None:
    done = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0 and done.failed == 0


def test_importing_loads_nothing() -> None:
    script = "import sys; before = set(sys.modules); import tensordiff; dir(tensordiff); "
    script += "print(sorted(name for name in set(sys.modules) - before if not name.startswith('_')))"
    done = processes.run([sys.executable, "-c", script], check=True)
    assert not {"numpy", "torch", "textual", "click", "matplotlib", "tensordiff.library"} & set(eval(done.stdout))


def test_comparing_loads_no_framework_and_no_face() -> None:
    names = ("torch", "transformers", "textual", "click", "pandas", "matplotlib")
    script = f"import sys, tensordiff; tensordiff.compare({str(SAMPLES / 'reference')!r}, {str(SAMPLES / 'max')!r}); "
    script += f"print([name for name in {names} if name in sys.modules])"
    assert processes.run([sys.executable, "-c", script], check=True).stdout.strip() == "[]"


def test_all_that_is_listed_is_there() -> None:
    assert dir(tensordiff) == sorted(tensordiff.__all__)
    for name in tensordiff.__all__:
        assert getattr(tensordiff, name) is not None, name
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        tensordiff.nope  # noqa: B018


@pytest.mark.parametrize("name", ["compare", "align", "capture"])
def test_a_package_that_can_be_called_has_the_function_s_signature(name: str) -> None:
    names = list(inspect.signature(getattr(tensordiff, name)).parameters)
    assert names[:2] in (["reference", "candidate"], ["model", "folder"])


def test_packages_stay_packages() -> None:
    from tensordiff import compare
    from tensordiff.compare import row

    assert compare.row is row  # type: ignore[attr-defined]
    assert compare({"a": A}, {"a": A}).verdict == "agrees"


def test_it_says_that_it_is_typed() -> None:
    assert (Path(tensordiff.__file__).parent / "py.typed").exists()


def test_a_disagreement_carries_the_result() -> None:
    with pytest.raises(tensordiff.Disagreement) as raised:
        tensordiff.testing.assert_agrees({"a": A}, {"a": 1.1 * A})
    assert raised.value.result is not None and raised.value.result.verdict == "diverges"


def test_align(tmp_path: Path) -> None:
    found = tensordiff.align(SAMPLES / "reference", SAMPLES / "max")
    assert found.order == "unknown" and found.coverage > 0.5
    assert len(found.pairs) == 45 and found.pairs[0].reference and found.pairs[0].by
    assert all(orphan.why for orphan in found.orphans)
    right = {f"layers.{k}.mlp": numbers(4, 8, seed=k) for k in range(6)}
    other = {f"blocks.{k}.ff": value for k, (name, value) in enumerate(right.items())}
    path = tensordiff.align(right, other).write(tmp_path / "rules.toml")
    assert tensordiff.compare(right, other, rules=path, learn=False).verdict == "agrees"


def test_bisect_by_verdict_and_by_a_judge() -> None:
    found = tensordiff.bisect(SAMPLES / "reference", SAMPLES / "candidate")
    assert found.first_bad is not None and found.first_bad.name == "layers.1.mlp.act_fn"
    assert found.verdict == "diverges" and found.is_monotone is not None and found.why
    asked: list[str] = []

    def is_good(row: tensordiff.ResultRow) -> bool:
        asked.append(row.name)
        return True

    nothing = tensordiff.bisect({"a": A}, {"a": A}, is_good)
    assert (nothing.verdict, nothing.first_bad, nothing.suspects, asked) == ("agrees", None, (), ["a"])
    skipped = tensordiff.bisect({"a": A}, {"a": A}, lambda row: None)
    assert skipped.verdict == "unknown" and "suspects" in repr(skipped)


def test_bisect_refuses() -> None:
    with pytest.raises(TypeError, match="a judge or rerun=True"):
        tensordiff.bisect({"a": A}, {"a": A}, lambda row: True, rerun=True)
    with pytest.raises(AlignError, match="nothing was paired"):
        tensordiff.bisect({"a": A}, {"b": numbers(5, 5)})


def test_bisect_by_reruns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.capture.models import SMALL, script

    file = script(tmp_path, SMALL)
    found = tensordiff.bisect(f"py:{file}:good", f"py:{file}:bad", rerun=True, keep=tmp_path / "kept")
    assert found.verdict == "diverges" and found.first_bad is not None


@pytest.mark.parametrize("name", ["compare", "align", "capture"])
def test_help_is_about_the_function(name: str) -> None:
    function = getattr(tensordiff, name)
    told = pydoc.plain(pydoc.render_doc(function))
    first, *_ = (inspect.getdoc(function) or "").splitlines()
    assert f"tensordiff.{name} - {first}" in told
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in told
