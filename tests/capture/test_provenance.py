"""What a manifest says of how it was made: read strictly, believed only as far as this user has signed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.job import Job, Source
from tensordiff.capture.provenance import input_settings, provenance_of, read_provenance, sign
from tensordiff.capture.settings import Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError

HUB = "hf:org/model"


def dump(source: object = HUB, settings: object = None, **facts: object) -> Dump:
    """A dump whose manifest says this."""
    said = {"source": source, "settings": {} if settings is None else settings, **facts}
    return Dump(Path("/dumps/d"), "tensordiff", (), ordered=True, facts=said)


def own(**settings: Any) -> Dump:
    """A dump that this user captured."""
    job = Job(Source("hf", "org/model"), Settings(**settings), "")
    facts = job.facts()
    return dump(facts["source"], facts["settings"], signature=sign(job))


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt": 5}, {"config": "x"}, {"config": None}, {"config": {"a": float("nan")}}, {"steps": 10**9},
        {"steps": 0}, {"steps": True}, {"steps": "3"}, {"steps": 10**400}, {"input_ids": "12"}, {"input_ids": [1, "2"]},
        {"input_ids": [-1]}, {"input_ids": [1 << 40]}, {"input_ids": []}, {"seed": 1.5}, {"force": 1},
        {"inject": "x"}, {"inject": {}}, {"inject": {"dump": 5}}, {"inject": {"dump": "d", "more": 1}}, {"layers": "("},
        {"num_hidden_layers": -1}, {"max_bytes": -1}, {"device": None}, {"unknown": 1}, {"prompt": "x" * (1 << 21)},
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_settings_that_no_capture_writes_are_a_sentence_and_ignored(settings: dict[str, Any]) -> None:
    made = dump(settings=settings, token_ids=[5, 7])
    with pytest.raises(CaptureError, match="does not say in a usable way what made it") as error:
        read_provenance(made)
    assert str(error.value).isprintable() and len(str(error.value)) < 500
    assert provenance_of(made) is None
    assert input_settings(made) == Settings(input_ids=(5, 7))


@pytest.mark.parametrize("source", [5, None, "", "hf:", "py:x", "zz:model", "py:/no/such.py:f", ["hf:x"], "py:\0:f"])
def test_a_source_that_is_none_is_a_sentence(source: object) -> None:
    with pytest.raises(CaptureError) as error:
        read_provenance(dump(source))
    assert str(error.value).isprintable()
    assert provenance_of(dump(source)) is None


@pytest.mark.parametrize("ids", ["12", [True], [1.0], [None], [], [-1], [1 << 31], {"a": 1}, 5])
def test_tokens_that_are_none_are_ignored(ids: object) -> None:
    assert input_settings(dump(token_ids=ids)) == Settings()


def test_an_interpreter_and_remote_code_are_never_taken_whoever_signed_them() -> None:
    made = own(python="/evil/python", trust_remote_code=True, force=True, seed=3)
    found = provenance_of(made)
    assert found is not None and found.is_own
    assert found.settings == Settings(seed=3)
    assert (found.python, found.has_remote_code) == ("/evil/python", True)


@pytest.mark.parametrize("name", ["prompt_file", "inputs", "image"])
def test_a_file_is_taken_only_from_a_dump_of_one_s_own(name: str) -> None:
    mine: dict[str, Any] = {name: "/mine"}
    assert input_settings(own(**mine)) == Settings(**mine)
    stranger = dump(settings={name: "/etc/secret"})
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(CaptureError, match=rf"was asked with {option} /etc/secret, .*\(it is not signed\); give"):
        input_settings(stranger)


def test_a_stranger_s_prompt_in_a_file_is_asked_by_its_tokens() -> None:
    made = dump(settings={"prompt_file": "/etc/secret", "steps": 3}, token_ids=[5, 7])
    assert input_settings(made) == Settings(input_ids=(5, 7), steps=3)


def test_a_stranger_s_picture_is_not_passed_over_in_silence() -> None:
    with pytest.raises(CaptureError, match="--image /etc/secret"):
        input_settings(dump(settings={"prompt": "what is it", "image": "/etc/secret"}, token_ids=[5]))


def test_text_and_tokens_are_taken_from_anyone() -> None:
    assert input_settings(dump(settings={"prompt": "why", "dtype": "float16"})) == Settings(prompt="why")
    assert input_settings(dump(settings={"input_ids": [1, 2], "steps": 4})) == Settings(input_ids=(1, 2), steps=4)


def test_an_id_that_is_a_folder_here_is_not_what_was_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = own()
    assert (found := provenance_of(made)) is not None and found.is_own
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = provenance_of(made)
    assert found is not None and not found.is_own
    assert found.doubt == "org/model is a folder here, and was not where it was captured"


def test_plain_settings_name_no_file_and_load_no_code() -> None:
    everything = {
        "prompt": "why", "prompt_file": "/p", "inputs": "/i", "image": "/g", "dtype": "float16", "seed": 3,
        "attn_implementation": "evil/kernel", "config": {"a": 1}, "revision": "x", "ops": "layer",
        "inject": {"dump": "/d"}, "python": "/evil", "trust_remote_code": True,
    }  # fmt: skip
    found = provenance_of(dump(settings=everything))
    assert found is not None
    assert found.plain().settings == Settings(prompt="why", dtype="float16", seed=3)
