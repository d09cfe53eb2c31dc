"""What a source in the place of a dump is asked: what the user says, else what the reference was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.job import Source
from tensordiff.capture.settings import Settings
from tensordiff.session.sources import settings_for, source_in
from tests.making import numbers, write

HF, PY = Source("hf", "some/model"), Source("py", "net.py", "make")


def dump(folder: Path, **facts: Any) -> Path:
    return write(folder / "reference", {"a": numbers(2)}, **facts)


def test_a_path_that_is_there_is_a_dump_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_in(Path("hf:model")) == Source("hf", "model")
    Path("hf:model").mkdir()
    assert source_in(Path("hf:model")) is None
    assert source_in(Path("x" * 5000)) is None


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (Settings(), Settings(prompt="why", image="cat.png", steps=4)),
        (Settings(dtype="float16"), Settings(dtype="float16", prompt="why", image="cat.png", steps=4)),
        (Settings(steps=2), Settings(prompt="why", image="cat.png", steps=2)),
        (Settings(image="dog.png"), Settings(image="dog.png")),
        (Settings(prompt="how"), Settings(prompt="how")),
    ],
    ids=["nothing", "how to compute", "steps", "an image", "a prompt"],
)
def test_a_candidate_is_asked_what_the_reference_was_where_the_user_does_not_say(
    tmp_path: Path, said: Settings, asked: Settings
) -> None:
    made = Settings(prompt="why", image="cat.png", steps=4, dtype="bfloat16").to_json()
    assert settings_for(HF, None, said, dump(tmp_path, source="hf:other", settings=made)) == asked


def test_without_a_prompt_the_reference_s_token_ids_are_asked(tmp_path: Path) -> None:
    assert settings_for(HF, None, Settings(), dump(tmp_path, token_ids=[5, 7])) == Settings(input_ids=(5, 7))


def test_token_ids_go_with_the_reference_s_steps(tmp_path: Path) -> None:
    reference = dump(tmp_path, source="hf:other", settings={"steps": 4}, token_ids=[5, 7])
    assert settings_for(HF, None, Settings(), reference) == Settings(input_ids=(5, 7), steps=4)


def test_a_function_asks_its_own_model(tmp_path: Path) -> None:
    reference = dump(tmp_path, token_ids=[5, 7])
    said = Settings(prompt="how", dtype="float16", seed=3)
    assert settings_for(PY, HF, said, reference) == Settings(seed=3)
    assert settings_for(PY, PY, said, reference) == said
    assert settings_for(PY, None, Settings(), reference) == Settings()
