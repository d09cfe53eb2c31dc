"""Who had a source run: a signature by a key that only this user has, over what was run and how."""

from __future__ import annotations

import json
import os
import stat
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.capture.job import Job, Source
from tensordiff.capture.provenance import sign, why_not_own
from tensordiff.capture.settings import Injection, Settings
from tensordiff.util import user_key
from tensordiff.util.user_key import key_file
from tests import processes

JOB = Job(Source("py", "/net.py", "make"), Settings(seed=3, config={"a": 1.5}), "out")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has no key yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def doubt(job: Job, signed: str | None) -> str:
    """Why a manifest of this job with this signature is not believed, as if another process had written it."""
    facts = json.loads(json.dumps(job.facts()))
    return why_not_own(facts["source"], facts["settings"], signed)


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_key, "_PROCESS_KEY", os.urandom(32))


def test_what_this_user_signed_is_known_again_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = sign(JOB)
    as_another_process(monkeypatch)
    assert doubt(JOB, signed) == ""


def test_whatever_is_changed_is_a_stranger_s() -> None:
    signed = sign(JOB)
    for other in (
        replace(JOB, source=Source("py", "/net.py", "makf")),
        replace(JOB, source=Source("py", "/nets.py", "make")),
        replace(JOB, settings=Settings(seed=4, config={"a": 1.5})),
        replace(JOB, settings=Settings(seed=3, config={"a": 1.5}, python="/evil")),
        replace(JOB, settings=Settings(seed=3)),
    ):
        assert "signed by someone else, or was changed since" in doubt(other, signed)
    assert signed is not None
    for wrong in (signed[:-1] + chr(ord(signed[-1]) ^ 1), "", "hmac-sha256:", signed.upper(), "\ud800"):
        assert doubt(JOB, wrong) != ""
    assert why_not_own("py:/net.py:make", {}, 5) == "it is not signed"
    assert why_not_own("py:/net.py:make", {}, None) == "it is not signed"


def test_another_user_s_signature_is_a_stranger_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = sign(JOB)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    as_another_process(monkeypatch)
    assert doubt(JOB, signed) == "you have no key here"
    sign(JOB)
    assert doubt(JOB, signed) == "it is signed by someone else, or was changed since"


def test_the_key_is_the_user_s_alone(home: Path) -> None:
    sign(JOB)
    assert key_file().parent.parent == home
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file().parent.stat().st_mode) == 0o700
    assert len(key_file().read_bytes()) == 32
    assert [path.name for path in key_file().parent.iterdir()] == [key_file().name]


def test_to_look_makes_no_key() -> None:
    assert doubt(JOB, "hmac-sha256:00") != ""
    assert not key_file().parent.exists()


def test_a_folder_that_a_group_may_write_to_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    key_file().parent.mkdir(parents=True)
    key_file().parent.chmod(0o775)
    signed = sign(JOB)
    as_another_process(monkeypatch)
    assert doubt(JOB, signed) == ""
    assert stat.S_IMODE(key_file().parent.stat().st_mode) == 0o700


def _group_readable(key: Path) -> None:
    key.chmod(0o640)


def _short(key: Path) -> None:
    key.write_bytes(b"short")


def _link(key: Path) -> None:
    key.rename(key.with_name("elsewhere"))
    key.symlink_to(key.with_name("elsewhere"))


def _open_folder(key: Path) -> None:
    key.parent.chmod(0o777)


def _fifo(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


@pytest.mark.parametrize("damage", [_group_readable, _short, _link, _open_folder, _fifo])
def test_a_key_that_others_may_know_or_replace_is_not_used(damage: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sign(JOB)
    damage(key_file())  # type: ignore[operator]
    signed = sign(JOB)
    assert signed != before
    assert doubt(JOB, signed) == "", "this process knows what it signed itself"
    as_another_process(monkeypatch)
    assert f"your key {key_file()} " in doubt(JOB, signed)
    assert doubt(JOB, before) != ""


def test_without_a_place_for_a_key_only_this_process_knows_its_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    signed = sign(JOB)
    assert signed is not None and doubt(JOB, signed) == ""
    as_another_process(monkeypatch)
    assert "cannot be read" in doubt(JOB, signed)


def test_what_depends_on_the_current_folder_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for relative in (
        replace(JOB, source=Source("py", "net.py", "make")),
        replace(JOB, source=Source("onnx", "net.onnx")),
        replace(JOB, settings=Settings(prompt_file="p.txt")),
        replace(JOB, settings=Settings(inject=Injection("reference"))),
        replace(JOB, settings=Settings(inject=Injection("/reference", "all", "rules.toml"))),
    ):
        assert sign(relative) is None
    hub = replace(JOB, source=Source("hf", "org/model"))
    assert sign(hub) is not None
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert sign(hub) is None


SIGN = """
import sys
from tensordiff.capture.job import Job, Source
from tensordiff.capture.settings import Settings
from tensordiff.capture.provenance import sign
print(sign(Job(Source("py", "/net.py", "make"), Settings(), "")))
"""


def test_processes_that_make_a_key_at_once_use_the_same(home: Path) -> None:
    with ExitStack() as stack:
        begun = [stack.enter_context(processes.started([sys.executable, "-c", SIGN], stdout=-1)) for _ in range(4)]
        said = {process.communicate(timeout=processes.PATIENCE_S)[0] for process in begun}
    assert len(said) == 1 and b"hmac-sha256:" in said.pop()
    assert [path.name for path in key_file().parent.iterdir()] == [key_file().name]
