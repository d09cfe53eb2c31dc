"""What dumps of strangers name is not run: not by replay, bisect --rerun or a source beside them, unless one says so.

Each attack is a real one: real dumps, the real command, and code that leaves a mark when it is run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tensordiff.capture.child import Child
from tests.capture.models import run_here, tiny_model
from tests.cli.command import COMMAND, Call, Said, assert_one_sentence, environment
from tests.cli.conftest import call as call
from tests.making import numbers, write
from tests.processes import on_terminal
from tests.strangers import Stranger, changed, signed

pytest.importorskip("torch")
LAYER = "model.blocks.2.act"


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is said, no process is started."""
    monkeypatch.setattr(Child, "__init__", lambda *_, **__: pytest.fail("a child was started"))


def replayed(call: Call, stranger: Stranger, *more: object) -> Said:
    return call("replay", stranger.candidate, LAYER, *more)


def searched(call: Call, stranger: Stranger, *more: object) -> Said:
    return call("bisect", *stranger.pair, "--rerun", "--only", r"blocks\.2(\.act)?$|^model$", *more)


RUNS = pytest.mark.parametrize("run", [replayed, searched])


@RUNS
@pytest.mark.usefixtures("no_child")
def test_a_stranger_s_code_is_not_run_and_it_is_shown(run: Call, call: Call, stranger: Stranger) -> None:
    said = run(call, stranger)
    assert_one_sentence(
        said, str(stranger.candidate), "was not captured by you here (it is not signed)",
        f"source py:{stranger.file}:bad", f"interpreter {sys.executable}", "remote code is not run", "--trust-source",
    )  # fmt: skip
    assert not stranger.was_run


@RUNS
@pytest.mark.usefixtures("no_child")
def test_a_file_of_the_current_folder_is_not_run_either(
    run: Call, call: Call, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stranger.folder)
    changed(stranger.candidate, source="py:evil.py:bad")
    assert_one_sentence(run(call, stranger), f"source py:{stranger.file}:bad")
    assert not stranger.was_run


@pytest.mark.parametrize(
    "source",
    ["py:/" + "a" * 5000 + ":f", "hf:/" + "a" * 5000, "hf:~nobody-of-this-name/x", "hf:a\0b", "hf:{folder}/loop"],
    ids=[
        "a file's name too long",
        "a folder's name too long",
        "a user that is not there",
        "a zero",
        "links in a circle",
    ],
)
@RUNS
@pytest.mark.usefixtures("no_child")
def test_a_source_that_no_file_system_could_hold_ends_in_a_sentence(
    run: Call, call: Call, stranger: Stranger, source: str
) -> None:
    (stranger.folder / "loop").symlink_to(stranger.folder / "loop")
    changed(stranger.candidate, source=source.format(folder=stranger.folder))
    assert_one_sentence(run(call, stranger), str(stranger.candidate))


@RUNS
@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("settings", [{"config": {"a": " " * 9_000}}, {"attn_implementation": "x" * 9_000}])
@pytest.mark.parametrize("trusts", [(), ("--trust-source",)])
def test_what_is_too_long_to_be_read_is_not_asked_about(
    run: Call, call: Call, stranger: Stranger, settings: dict[str, object], trusts: tuple[str, ...]
) -> None:
    """Behind a long value a stranger could write, at the end, what looks like another source."""
    changed(stranger.candidate, settings=settings)
    said = run(call, stranger, *trusts)
    assert_one_sentence(said, "was not captured by you here", "too much to review")
    assert len(said.err) < 1_000 and not stranger.was_run


@RUNS
@pytest.mark.usefixtures("no_child")
def test_all_that_would_be_read_is_shown(run: Call, call: Call, stranger: Stranger) -> None:
    settings = {
        "prompt_file": "secret.txt", "inputs": "/etc/shadow", "image": "/i.png", "config": {"auto_map": "x"},
        "attn_implementation": "evil/kernel", "python": "./evil-interpreter", "trust_remote_code": True,
        "inject": {"dump": "/other/dump", "rules": "/rules.toml"}, "prompt": "a\x1b[2Jb",
    }  # fmt: skip
    changed(stranger.candidate, settings=settings, source="hf:evil/model")
    said = run(call, stranger)
    assert_one_sentence(
        said, "source hf:evil/model", f"reads {Path.cwd() / 'secret.txt'} (prompt_file)",
        "reads /etc/shadow (inputs)", "reads /i.png (image)", "reads /other/dump (inject)",
        "reads /rules.toml (rules)", "evil/kernel", "auto_map",
        "the dump asks for ./evil-interpreter, which is not run",
        "remote code is not run, though the dump asks for it",
    )  # fmt: skip


@RUNS
def test_with_trust_source_it_is_run_and_said(run: Call, call: Call, stranger: Stranger) -> None:
    said = run(call, stranger, "--trust-source")
    assert said.status in (0, 1), said.err
    assert f"as --trust-source says: the {'dump' if run is replayed else 'candidate'} {stranger.candidate}" in said.err
    assert stranger.was_run


@RUNS
def test_what_this_user_captured_is_run_without_a_question(run: Call, call: Call, stranger: Stranger) -> None:
    signed(stranger.candidate, f"py:{stranger.file}:bad")
    said = run(call, stranger)
    assert said.status in (0, 1), said.err
    assert "trust" not in said.err
    assert stranger.was_run


@pytest.mark.usefixtures("no_child")
def test_one_changed_byte_makes_it_a_stranger_s(call: Call, stranger: Stranger) -> None:
    for what, other in (("bad", "baf"), ('"seed": 7', '"seed": 8')):
        signed(stranger.candidate, f"py:{stranger.file}:bad", seed=7)
        manifest = stranger.candidate / "manifest.json"
        text = manifest.read_text()
        at = text.index(what)
        manifest.write_text(text[:at] + other + text[at + len(what) :])
        assert_one_sentence(replayed(call, stranger), "it is signed by someone else, or was changed since")
    assert not stranger.was_run


@RUNS
def test_no_manifest_names_the_interpreter_whoever_signed_it(run: Call, call: Call, stranger: Stranger) -> None:
    evil = stranger.interpreter()
    signed(stranger.candidate, f"py:{stranger.file}:bad", python=str(evil))
    assert stranger.was_run is False
    stranger.file.write_text(stranger.file.read_text().replace('"marker"', '"ordinary"'))
    said = run(call, stranger)
    assert said.status in (0, 1), said.err
    assert f"was captured in the interpreter {evil}, which is never taken from a dump" in said.err
    assert "--python" in said.err
    assert not stranger.was_run
    said = run(call, stranger, "--python", evil)
    assert said.status == 2 and stranger.was_run  # which proves that it would have been


@RUNS
@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("as_link", [False, True], ids=["in the dump", "a link to it"])
def test_code_within_a_dump_is_refused_even_where_it_is_trusted(
    run: Call, call: Call, stranger: Stranger, as_link: bool
) -> None:
    inside = stranger.candidate / "evil.py"
    inside.write_text(stranger.file.read_text())
    named = stranger.folder / "innocent.py"
    named.symlink_to(inside)
    changed(stranger.candidate, source=f"py:{named if as_link else inside}:bad")
    for trust in ((), ("--trust-source",)):
        said = run(call, stranger, *trust)
        assert_one_sentence(said, f"{inside} lies within the dump {stranger.candidate}, and nothing in a dump is run")
    signed(stranger.candidate, f"py:{inside}:bad")
    assert_one_sentence(run(call, stranger), "lies within the dump")


@pytest.mark.usefixtures("no_child")
def test_code_within_the_other_dump_is_refused_too(call: Call, stranger: Stranger) -> None:
    inside = stranger.reference / "evil.py"
    inside.write_text(stranger.file.read_text())
    changed(stranger.candidate, source=f"py:{inside}:bad")
    said = searched(call, stranger, "--trust-source")
    assert_one_sentence(said, f"{inside} lies within the dump {stranger.reference}")


@RUNS
@pytest.mark.usefixtures("no_child")
def test_an_interpreter_within_a_dump_is_refused(run: Call, call: Call, stranger: Stranger) -> None:
    signed(stranger.candidate, f"py:{stranger.file}:bad")
    venv = stranger.candidate / "bin"
    venv.mkdir()
    (venv / "python").symlink_to(sys.executable)  # as in a virtual environment, whose packages would be loaded
    assert_one_sentence(run(call, stranger, "--python", venv / "python"), "lies within the dump")


MODEL = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
(Path({folder!r}) / "marker").touch()

class EvilConfig(LlamaConfig):
    model_type = "evil"

class EvilModel(LlamaForCausalLM):
    config_class = EvilConfig
"""


def test_a_model_s_own_code_is_run_only_where_the_command_line_says_so(
    call: Call, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HOME", str(stranger.folder / "hub"))
    model = tiny_model("llama", stranger.folder)
    dump = run_here(f"hf:{model}", stranger.folder / "d", prompt_file=None, input_ids=(1, 2, 3)).path
    config = json.loads((model / "config.json").read_text())
    own = {"AutoConfig": "evil_model.EvilConfig", "AutoModelForCausalLM": "evil_model.EvilModel"}
    (model / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": own}))
    (model / "evil_model.py").write_text(MODEL.format(folder=str(stranger.folder)))
    signed(dump, f"hf:{model}", input_ids=(1, 2, 3), trust_remote_code=True)
    said = call("replay", dump, "model.layers.0.mlp")
    assert said.status == 2
    assert "was captured with the model's own code, which a dump cannot ask for; give --trust-remote-code" in said.err
    assert not stranger.was_run
    said = call("replay", dump, "model.layers.0.mlp", "--trust-remote-code")
    assert stranger.was_run, said.err


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("name", ["prompt_file", "inputs", "image"])
def test_a_source_beside_a_stranger_s_reference_reads_no_file_that_it_names(
    call: Call, tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_text("a key")
    settings = {name: str(tmp_path / "secret")}
    reference = write(tmp_path / "reference", {"a": numbers(2)}, source="hf:org/model", settings=settings)
    said = call("compare", reference, "hf:org/model")
    assert_one_sentence(said, f"--{name.replace('_', '-')} {tmp_path / 'secret'}", "only from a dump that you captured")


def test_a_source_of_the_command_line_takes_only_plain_settings_from_a_stranger(call: Call, stranger: Stranger) -> None:
    ours = stranger.folder / "ours.py"
    ours.write_text(stranger.file.read_text().replace('"marker"', '"ordinary"'))
    changed(stranger.candidate, settings={"seed": 3, "config": {"a": 1}, "python": str(stranger.interpreter())})
    said = call("replay", stranger.candidate, LAYER, "--source", f"py:{ours}:bad")
    assert said.status == 0, said.err
    assert "so of its settings config is left out; --trust-source takes all" in said.err
    assert not stranger.was_run


# --- at a terminal ------------------------------------------------------------------------------------


def answered(stranger: Stranger, answer: str) -> tuple[int, str]:
    command = [*COMMAND, "replay", str(stranger.candidate), LAYER]
    with on_terminal(command, columns=200, env=environment({"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]})) as (
        terminal,
        process,
    ):
        asked = terminal.until("Type yes to run it, anything else to cancel: ")
        assert f"source       py:{stranger.file}:bad" in asked
        assert f"interpreter  {sys.executable}" in asked
        assert not stranger.was_run
        terminal.type(f"{answer}\n")
        return terminal.read_until_ended(process), terminal.text


@pytest.mark.parametrize("answer", ["", "no", "y", "YES", "yes please"])
def test_anything_but_yes_leaves_it(stranger: Stranger, answer: str) -> None:
    status, text = answered(stranger, answer)
    assert status == 2 and "was not run again, as you did not type yes" in text
    assert not stranger.was_run


def test_a_typed_yes_runs_it(stranger: Stranger) -> None:
    status, text = answered(stranger, "yes")
    assert status == 0, text
    assert stranger.was_run
