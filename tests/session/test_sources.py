"""What a source in the place of a dump is asked: what the user says, else what the reference was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.job import Job, Source
from tensordiff.capture.provenance import sign
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError
from tensordiff.session.request import Request
from tensordiff.session.sources import Sources, source_in
from tests.making import numbers, write

HF, PY = Source("hf", "some/model"), Source("py", "net.py", "make")


def asked(candidate: Source, reference: Path, said: Settings, other: Source | None = None) -> Settings:
    """What the candidate is asked, once the reference is a dump."""
    request = Request(reference, Path(str(candidate)), settings=said)
    return Sources(request, other, candidate).job().settings


def dump(folder: Path, **facts: Any) -> Path:
    return write(folder / "reference", {"a": numbers(2)}, **facts)


def own_dump(folder: Path, made: Settings) -> Path:
    """A dump that this user captured."""
    job = Job(Source("hf", "other"), made, "")
    return dump(folder, **job.facts(), signature=sign(job))


def test_a_path_that_is_there_is_a_dump_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_in(Path("hf:model")) == Source("hf", "model")
    Path("hf:model").mkdir()
    assert source_in(Path("hf:model")) is None
    assert source_in(Path("x" * 5000)) is None


@pytest.mark.parametrize(
    ("said", "run"),
    [
        (Settings(), Settings(prompt="why", image="/cat.png", steps=4)),
        (Settings(dtype="float16"), Settings(dtype="float16", prompt="why", image="/cat.png", steps=4)),
        (Settings(steps=2), Settings(prompt="why", image="/cat.png", steps=2)),
        (Settings(image="dog.png"), Settings(image="dog.png")),
        (Settings(prompt="how"), Settings(prompt="how")),
    ],
    ids=["nothing", "how to compute", "steps", "an image", "a prompt"],
)
def test_a_candidate_is_asked_what_the_reference_was_where_the_user_does_not_say(
    tmp_path: Path, said: Settings, run: Settings
) -> None:
    made = Settings(prompt="why", image="/cat.png", steps=4, dtype="bfloat16")
    assert asked(HF, own_dump(tmp_path, made), said) == run


def test_without_a_prompt_the_reference_s_token_ids_are_asked(tmp_path: Path) -> None:
    assert asked(HF, dump(tmp_path, token_ids=[5, 7]), Settings()) == Settings(input_ids=(5, 7))


def test_token_ids_go_with_the_reference_s_steps(tmp_path: Path) -> None:
    reference = dump(tmp_path, source="hf:other", settings={"steps": 4}, token_ids=[5, 7])
    assert asked(HF, reference, Settings()) == Settings(input_ids=(5, 7), steps=4)


def test_later_steps_are_given_the_reference_s_tokens(tmp_path: Path) -> None:
    said = {"source": "hf:other", "settings": {"steps": 4}, "token_ids": [5, 7]}
    reference = dump(tmp_path, **said, decode_token_ids=[3, 1, 2])
    assert asked(HF, reference, Settings()) == Settings(input_ids=(5, 7), steps=4, decode_ids=(3, 1, 2))
    assert asked(HF, reference, Settings(prompt="how", steps=2)) == Settings(prompt="how", steps=2, decode_ids=(3,))
    own = Settings(steps=3, decode_ids=(9,))
    assert asked(HF, reference, own) == Settings(input_ids=(5, 7), steps=3, decode_ids=(9,))
    assert asked(Source("onnx", "net.onnx"), reference, Settings(steps=2)).decode_ids is None  # it refuses them


@pytest.mark.parametrize("ids", [[-1], ["x"], "12", [1 << 40], [True]])
def test_what_are_no_tokens_is_not_asked(tmp_path: Path, ids: object) -> None:
    reference = dump(tmp_path, source="hf:other", settings={"steps": 2}, token_ids=[5, 7], decode_token_ids=ids)
    assert asked(HF, reference, Settings()) == Settings(input_ids=(5, 7), steps=2)


def test_an_engine_that_takes_tokens_is_given_those_of_the_reference_s_prompt(tmp_path: Path) -> None:
    made = Job(Source("hf", "other"), Settings(prompt="why"), "")
    reference = dump(tmp_path, **made.facts(), prompt="why", token_ids=[5, 7], signature=sign(made))
    engine = Source("llamacpp", "model.gguf")
    assert asked(engine, reference, Settings()) == Settings(input_ids=(5, 7))
    assert asked(engine, reference, Settings(prompt="why")) == Settings(input_ids=(5, 7))
    assert asked(engine, reference, Settings(prompt="how")) == Settings(prompt="how")
    assert asked(HF, reference, Settings()) == Settings(prompt="why")


def test_a_function_asks_its_own_model(tmp_path: Path) -> None:
    reference = dump(tmp_path, token_ids=[5, 7])
    said = Settings(prompt="how", dtype="float16", seed=3)
    assert asked(PY, reference, said, HF) == Settings(seed=3)
    assert asked(PY, reference, said, PY) == said
    assert asked(PY, reference, Settings()) == Settings()


def test_the_reference_is_run_first_and_each_side_with_its_own_settings(tmp_path: Path) -> None:
    request = Request(Path("hf:one"), Path("hf:two"), settings=Settings(prompt="why", dtype="float32"))
    sources = Sources.of(replace(request, candidate_settings=Settings(dtype="float16")))
    assert sources.side == "reference" and sources.job().settings == request.settings
    made = write(tmp_path / "made", {"a": numbers(2)}, source="hf:one", settings=request.settings.to_json())
    sources = sources.with_dump(made)
    job = sources.job(tmp_path / "candidate")
    assert sources.side == "candidate" and job.output == str(tmp_path / "candidate")
    assert job.source == Source("hf", "two") and job.settings == Settings(prompt="why", dtype="float16")
    sources = sources.with_dump(tmp_path / "made")
    assert sources.side is None and (sources.request.reference, sources.request.candidate) == (made, tmp_path / "made")
    with pytest.raises(CaptureError, match="no source to run"):
        sources.job()


def test_a_function_beside_a_model_is_not_given_the_model_s_options_once_that_has_run(tmp_path: Path) -> None:
    said = Settings(prompt="why", dtype="float16", seed=3)
    sources = Sources.of(Request(Path("hf:one"), Path("py:net.py:make"), settings=said))
    assert sources.with_dump(dump(tmp_path, token_ids=[5])).job().settings == Settings(seed=3)


def test_what_reaches_only_the_model_beside_a_function_is_said() -> None:
    def unused(reference: str, candidate: str, **said: Any) -> list[str]:
        return list(Sources.of(Request(Path(reference), Path(candidate), settings=Settings(**said))).unused_options())

    told = "alone; the function py:net.py:make decides for itself what it runs, and in which precision"
    assert unused("hf:one", "py:net.py:make", dtype="float16", seed=3) == [f"--dtype: it is for hf:one {told}"]
    assert unused("py:net.py:make", "hf:one", prompt="why", steps=2) == [
        f"--prompt, --steps: they are for hf:one {told}"
    ]
    assert unused("hf:one", "py:net.py:make", seed=3, deterministic=True, weights=True) == []
    assert unused("hf:one", "hf:two", dtype="float16") == []


def test_settings_that_a_source_refuses_are_refused_before_anything_is_run() -> None:
    request = Request(Path("hf:model"), Path("onnx:graph.onnx"), settings=Settings(steps=3))
    with pytest.raises(CaptureError, match=r"^onnx:graph.onnx: --steps is not for onnx: sources; a graph is run once$"):
        Sources.of(request)
