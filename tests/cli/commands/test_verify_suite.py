"""``tensordiff verify --suite``: many models, one table, and what is verified again: whatever may have changed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tensordiff.session.storage import dependencies
from tensordiff.util import user_key
from tests.cli.command import CANDIDATE, REFERENCE, Call, assert_one_sentence
from tests.cli.commands.test_verify import TINY
from tests.making import SAMPLES, numbers, save

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("reference", "max", "candidate"):
        shutil.copytree(SAMPLES / name, tmp_path / "dumps" / name)
    path = tmp_path / "suite.toml"
    path.write_text(
        """
        [[model]]
        name = "healthy"
        reference = "dumps/reference"
        candidate = "dumps/max"

        [[model]]
        name = "broken"
        reference = "dumps/reference"
        candidate = "dumps/candidate"

        [[model]]
        name = "allowed"
        reference = "dumps/reference"
        candidate = "dumps/candidate"
        threshold = 0.5
        """
    )
    return path


def test_a_suite_goes_on_and_sums_up(call: Call, suite: Path, tmp_path: Path) -> None:
    said = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert said.status == 1
    lines = said.out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["✓", "healthy", "agrees"], ["✗", "broken", "diverges"], ["✓", "allowed", "agrees"],
    ]  # fmt: skip
    assert lines[1].endswith("layers.1.mlp.act_fn 8.28e-02")
    summary = (tmp_path / "v/summary.md").read_text()
    assert summary.startswith("# 2 of 3 models hold\n")
    assert "[broken](broken/summary.md)" in summary
    assert (tmp_path / "v/broken/without_injection/report.html").is_file()


def test_a_suite_is_resumed(call: Call, suite: Path, tmp_path: Path) -> None:
    first = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert first.err.count(": verifying") == 3
    again = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert again.err.splitlines() == [
        "healthy: done already", "broken: verifying again: it did not agree", "allowed: done already",
    ]  # fmt: skip
    assert (again.status, again.out) == (first.status, first.out)
    suite.write_text(suite.read_text().replace("threshold = 0.5", "threshold = 0.6"))
    changed = call("verify", "--suite", suite, "-o", tmp_path / "v").err.splitlines()
    assert changed[0] == "healthy: done already"
    assert changed[2] == "allowed: verifying again: what was asked for changed"
    assert call("verify", "--suite", suite, "-o", tmp_path / "v", "--fresh").err.count(": verifying") == 3


def test_a_suite_is_done_again_when_its_session_file_changed(call: Call, suite: Path, tmp_path: Path) -> None:
    session = tmp_path / "s.json"
    session.write_text(json.dumps({"schema": "tensordiff.session/1"}))
    words = ("verify", "--suite", suite, "-o", tmp_path / "v", "--session", session)
    assert call(*words).err.count(": verifying") == 3
    assert call(*words).err.count(": done already") == 2
    said = "[[tolerance]]\nmatch = ''\nrel_l2 = 0.0\n"
    session.write_text(json.dumps({"schema": "tensordiff.session/1", "rules": {"said": said, "over": ""}}))
    again = call(*words)
    assert again.err.count(": verifying") == 3
    assert again.out.startswith("✗ healthy")


def test_a_model_that_cannot_be_verified_stops_no_other(call: Call, suite: Path, tmp_path: Path) -> None:
    suite.write_text(suite.read_text().replace("dumps/candidate", "dumps/nowhere"))
    said = call("verify", "--suite", suite, "-o", tmp_path / "v", "--json")
    assert said.status == 2
    assert [model["verdict"] for model in json.loads(said.out)["models"]] == ["agrees", "unknown", "unknown"]
    again = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert again.err.count(": verifying") == 2


# --- what is verified again -------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A suite of one model that holds, verified into the folder ``v``."""
    tensors = {f"layers.{k}": numbers(8, seed=k) for k in range(3)}
    save(tmp_path / "r.safetensors", tensors)
    save(tmp_path / "c.safetensors", tensors)
    (tmp_path / "rules.toml").write_text("# 1\n")
    path = tmp_path / "suite.toml"
    path.write_text(
        "[[model]]\nname = 'one'\nreference = 'r.safetensors'\ncandidate = 'c.safetensors'\nrules = 'rules.toml'\n"
    )
    return path


def keeping_times(path: Path, data: bytes) -> None:
    """Other content of the same size, and with the same time."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    keeping_times(path, bytes(data))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: flipped(f / "c.safetensors"), "the candidate changed"),
        (lambda f: flipped(f / "r.safetensors"), "the reference changed"),
        (lambda f: keeping_times(f / "rules.toml", b"# 2\n"), "--rules changed"),
        (lambda f: shutil.copy(f / "c.safetensors", f / "c_injected.safetensors"),
         "the injected dump beside the candidate changed"),
        (lambda f: (f / "v/one/summary.md").unlink(), "v/one/summary.md is not there as it was written"),
        (lambda f: flipped(f / "v/one/without_injection/report.json"), "report.json is not there as it was written"),
        (lambda f: flipped(f / "v/one/without_injection/mse_plot.png"), "mse_plot.png is not there as it was written"),
    ],
)  # fmt: skip
def test_a_file_that_changed_is_seen_whatever_its_size_and_date_say(
    call: Call, small: Path, tmp_path: Path, change: Callable[[Path], object], reason: str
) -> None:
    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    assert call(*words).err == "one: verifying\n"
    assert call(*words).err == "one: done already\n"
    change(tmp_path)
    again = call(*words)
    assert again.err.splitlines()[0].startswith("one: verifying again: ")
    assert again.err.splitlines()[0].endswith(reason)
    assert call(*words).err == "one: done already\n" or again.status


def test_a_copy_and_a_touch_change_nothing(call: Call, small: Path, tmp_path: Path) -> None:
    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    call(*words)
    shutil.copy(tmp_path / "c.safetensors", tmp_path / "copy")
    (tmp_path / "copy").replace(tmp_path / "c.safetensors")
    assert call(*words).err == "one: done already\n"


def test_other_options_and_what_they_promise(call: Call, small: Path, tmp_path: Path) -> None:
    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    call(*words)
    again = "one: verifying again: what was asked for changed\n"
    assert call(*words, "--save-layers").err == again
    assert call(*words, "--save-layers").err == "one: done already\n"
    flipped(tmp_path / "v/one/without_injection/candidate_layers/tensors-00000.safetensors")
    assert "tensors-00000.safetensors is not there as it was written" in call(*words, "--save-layers").err
    assert call(*words, "--junit", tmp_path / "j.xml").err == again
    assert call(*words, "--junit", tmp_path / "j.xml").err == "one: done already\n"
    (tmp_path / "j-one.xml").unlink()
    assert "j-one.xml is not there" in call(*words, "--junit", tmp_path / "j.xml").err


def test_other_packages_and_another_tensordiff(
    call: Call, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    call(*words)
    with monkeypatch.context() as patch:
        patch.setattr(dependencies, "_own_packages", lambda: "others")
        assert call(*words).err == "one: verifying again: the packages changed\n"
    call(*words)
    monkeypatch.setattr("tensordiff.__version__", "0.0.0")
    assert call(*words).err == "one: verifying again: tensordiff changed\n"


def test_a_file_that_changes_meanwhile_leaves_no_record(
    call: Call, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensordiff.cli.commands import verify_suite

    verify = verify_suite.verify_both  # type: ignore[attr-defined]

    def meddled(*args: object) -> object:
        found = verify(*args)  # type: ignore[arg-type]
        flipped(tmp_path / "c.safetensors")
        return found

    monkeypatch.setattr(verify_suite, "verify_both", meddled)
    said = call("verify", "--suite", small, "-o", tmp_path / "v")
    assert said.status == 0
    assert said.err.endswith(
        "one: the candidate changed while it was verified, so it will be verified again the next time\n"
    )
    assert not (tmp_path / "v/one/done.json").exists()


# --- records of strangers -----------------------------------------------------------------------------


def forged(path: Path, **more: object) -> None:
    """A record with other content and the signature it had."""
    found = json.loads(path.read_text())
    record = json.loads(found["record"])
    record["result"].update(more)
    path.write_text(json.dumps({**found, "record": json.dumps(record)}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: forged(path, pairs=7), "is ignored: it is signed by someone else, or was changed since"),
        (lambda path: path.write_text(json.dumps({"record": "{}", "signature": None})), "ignored: it is not signed"),
        (lambda path: path.write_text(json.dumps({"record": "{}", "signature": "\ud800"})), "is ignored"),
        (lambda path: path.write_text("[1]"), "was not written by tensordiff"),
        (lambda path: path.write_text("[" * 100_000), "was not written by tensordiff"),
        (lambda path: path.write_bytes(b"\xff\x00"), "was not written by tensordiff"),
        (lambda path: path.write_text('{"record": {"a": 1}, "signature": "x"}'), "was not written by tensordiff"),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read (is a directory)"),
        (lambda path: user_key.key_file().unlink(), "is ignored: you have no key here"),
        (lambda path: user_key.key_file().chmod(0o644), "is not used: others may read or own it"),
    ],
)  # fmt: skip
def test_a_record_is_believed_only_where_this_user_signed_it(
    call: Call,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    reason: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    call(*words)
    change(tmp_path / "v/one/done.json")
    monkeypatch.setattr(user_key, "_PROCESS_KEY", bytes(32))  # as in another process
    said = call(*words)
    assert said.err.startswith("one: verifying again: its done.json ")
    assert reason in said.err.splitlines()[0]
    assert said.status == (2 if "directory" in reason else 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"result": None}, {"result": {"name": "one"}}, {"depends": [1]}, {"depends": {"a": 1}},
        {"written": {"a": None}}, {"loaded": {"a": 1}}, {"loaded": {"a": [[1], "s"]}}, {"result.verdict": "fine"},
        {"result.pairs": "7"},
        {"result.culprit": 5}, {"result.more": 5},
    ],
)  # fmt: skip
def test_a_record_that_is_signed_is_read_strictly_all_the_same(
    call: Call, small: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    from tensordiff.session.storage.suite_record import SCHEMA

    words = ("verify", "--suite", small, "-o", tmp_path / "v")
    call(*words)
    path = tmp_path / "v/one/done.json"
    record = json.loads(json.loads(path.read_text())["record"])
    for key, value in wrong.items():
        where, _, inner = key.partition(".")
        if inner:
            record[where][inner] = value
        else:
            record[where] = value
    text = json.dumps(record)
    path.write_text(json.dumps({"record": text, "signature": user_key.sign(SCHEMA, text)}))
    assert call(*words).err == "one: verifying again: its done.json was not written by tensordiff\n"


def test_a_record_of_another_model(call: Call, small: Path, tmp_path: Path) -> None:
    call("verify", "--suite", small, "-o", tmp_path / "v")
    small.write_text(small.read_text().replace("'one'", "'two'"))
    shutil.copytree(tmp_path / "v/one", tmp_path / "v/two")
    said = call("verify", "--suite", small, "-o", tmp_path / "v")
    assert said.err == "two: verifying again: its done.json is of another model\n"


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(call: Call, small: Path, tmp_path: Path) -> None:
    (tmp_path / "v/one").mkdir(parents=True)
    os.mkfifo(tmp_path / "v/one/done.json")
    said = call("verify", "--suite", small, "-o", tmp_path / "v")
    assert said.err == "one: verifying again: its done.json was not written by tensordiff\n"
    assert json.loads((tmp_path / "v/one/done.json").read_bytes())["signature"]


# --- sources ------------------------------------------------------------------------------------------


@needs_torch
def test_a_function_is_run_again_unless_told_and_its_imports_are_known(call: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY + "    import lazily\n")
    (tmp_path / "lazily.py").write_text("NUMBER = 1\n")
    suite = tmp_path / "suite.toml"
    suite.write_text("[[model]]\nname = 'one'\nreference = 'py:tiny.py:good'\ncandidate = 'py:tiny.py:good'\n")
    text = (tmp_path / "tiny.py").read_text().replace("def good():\n", "def good():\n    import lazily\n")
    (tmp_path / "tiny.py").write_text(text)
    time.sleep(0.1)  # what was written just now is not known to be what ran
    words = ("verify", "--suite", suite, "-o", tmp_path / "v")
    first = call(*words)
    assert (first.status, "one: verifying" in first.err) == (0, True), first.err
    assert call(*words, "--resume").err == "one: done already\n"
    record = json.loads(json.loads((tmp_path / "v/one/done.json").read_text())["record"])
    files = {f"{folder}/{name}" for folder, (names, _) in record["loaded"].items() for name in names}
    assert {str(tmp_path / "tiny.py"), str(tmp_path / "lazily.py")} <= files
    assert any(file.endswith("libtorch_cpu.so") for file in files)
    assert not any("reference_layers" in file for file in files)
    keeping_times(tmp_path / "lazily.py", b"NUMBER = 2\n")
    assert reason_now(suite, tmp_path / "v", resume=True) == f"what it ran changed: {tmp_path}"
    assert (
        reason_now(suite, tmp_path / "v", resume=False)
        == "the reference is a function, which may read data that cannot be tracked"
    )


def reason_now(suite: Path, output: Path, *, resume: bool) -> str:
    """Why a suite's only model would be verified again; it is not."""
    from tensordiff.cli.commands.verify import VerifyOptions
    from tensordiff.cli.commands.verify_suite import _depends, _own_options, read_suite
    from tensordiff.session.request import Request
    from tensordiff.session.storage.suite_record import RECORD, Record, read_record, why_again

    (model,) = read_suite(suite, Request(Path(), Path()))
    options = _own_options(model, VerifyOptions(output))
    record = read_record(options.output / RECORD, model.name)
    assert isinstance(record, Record)
    return why_again(record, _depends(model, options), believes=resume)


def test_fresh_and_resume_contradict_each_other(call: Call, small: Path, tmp_path: Path) -> None:
    said = call("verify", "--suite", small, "-o", tmp_path / "v", "--fresh", "--resume")
    assert_one_sentence(said, "--fresh and --resume: give one of them")


# --- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = ", "is not valid TOML"),
        ("x = " + "[" * 5000, "is not valid TOML"),
        ("", "a suite is [[model]] tables"),
        ("[[model]]\nname = '../up'\nreference = 'a'\ncandidate = 'b'", "becomes a folder"),
        ("[[model]]\nname = 'a'\ncandidate = 'b'", "'reference' is missing"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nodd = 1", "a [[model]] says odd"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nsettings = {odd = 1}", "unknown settings: odd"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nthreshold = 'x'", "model a: threshold is 'x'"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\natol = nan", "model a: atol is nan; it is a number"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nrtol = -1", "model a: rtol is -1; it is a number"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nthreshold = inf", "model a: threshold is inf"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\natol = true", "model a: atol is True"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nstep = -1", "model a: step = -1"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nonly = 3", "only = 3"),
        (2 * "[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\n", "the same name"),
    ],
)  # fmt: skip
def test_suites_that_are_wrong(call: Call, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    assert_one_sentence(call("verify", "--suite", tmp_path / "s.toml", "-o", tmp_path / "v"), "s.toml", part)


def test_a_suite_and_two_sides(call: Call, suite: Path, tmp_path: Path) -> None:
    said = call("verify", REFERENCE, CANDIDATE, "--suite", suite, "-o", tmp_path / "v")
    assert_one_sentence(said, "give a suite or two sides")
