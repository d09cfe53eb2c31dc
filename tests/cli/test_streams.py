"""The command as a process among others: pipes, signals, character sets, colour."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, environment, process, shell
from tests.making import save
from tests.processes import PATIENCE_S, run_for_bytes, started

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dump whose rows fill any pipe many times over."""
    one = np.ones(1, np.float32)
    tensors = {f"model.layers.{i}.mlp.down_proj-output": one for i in range(20_000)}
    return str(save(tmp_path_factory.mktemp("long") / "d.safetensors", tensors))


def test_a_reader_that_leaves_early_is_no_failure(long: str) -> None:
    said = shell(f"$tensordiff compare {long} {long} | head -1")
    assert said.out.startswith("reference  ")
    assert said.out.count("\n") == 1
    assert (said.status, said.err) == (0, "")


def test_a_comparison_cut_short_does_not_claim_to_agree(long: str) -> None:
    assert shell(f"$tensordiff compare {long} {long} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}").status == 2


def test_ctrl_c_in_the_middle(long: str) -> None:
    command = [*COMMAND, "compare", long, long]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as running:
        assert running.stdout is not None
        # Rows are being measured, and cannot all be: nobody takes them from the pipe.
        while not running.stdout.readline().startswith("✓     0"):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    assert err == "interrupted\n"
    assert "verdict" not in out


def test_no_colour_when_piped() -> None:
    assert ESCAPE not in process("compare", REFERENCE, CANDIDATE, "-q").out


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ascii", {"PYTHONIOENCODING": "ascii"}),
        ("no locale", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ],
)
def test_a_terminal_that_has_only_ascii(name: str, env: dict[str, str]) -> None:
    done = run_for_bytes([*COMMAND, "compare", REFERENCE, CANDIDATE], env=environment(env))
    assert (done.returncode, done.stderr) == (1, b"")
    out = done.stdout.decode("ascii")
    assert "max|d|" in out
    assert re.search(r"^\+     0 embed_tokens input_0 .* \.{9}$", out, re.M)
    assert re.search(r"^x    57 layers\.1\.mlp\.act_fn .* [78]{16}$", out, re.M)


def test_the_plain_c_locale() -> None:
    done = process("compare", REFERENCE, CANDIDATE, "-q", env={"LC_ALL": "C"})
    assert (done.status, done.err) == (1, "")


def test_a_character_set_that_has_some_of_our_glyphs() -> None:
    env = environment({"PYTHONIOENCODING": "latin-1"})
    done = run_for_bytes([*COMMAND, "compare", REFERENCE, CANDIDATE], env=env)
    assert (done.returncode, done.stderr) == (1, b"")
    assert re.search(r"^\+     0 embed_tokens input_0 .* ·{9}$", done.stdout.decode("latin-1"), re.M)


def test_names_that_ascii_lacks_are_escaped(tmp_path: Path) -> None:
    made = str(save(tmp_path / "d.safetensors", {"語.é": np.ones(2, np.float32)}))
    said = process("compare", made, made, env={"PYTHONIOENCODING": "ascii"})
    assert said.status == 0
    assert r"\u8a9e.\xe9" in said.out


@pytest.mark.parametrize("command", ["compare", "inspect", "lint", "demo"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_in_any_character_set(command: str, encoding: str) -> None:
    done = run_for_bytes([*COMMAND, command, "--help"], env=environment({"PYTHONIOENCODING": encoding}))
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "closed", "status"),
    [
        (f"compare {REFERENCE} {CANDIDATE}", ">&-", 1),
        (f"compare {REFERENCE} {CANDIDATE}", "2>&-", 1),
        (f"compare {REFERENCE} {CANDIDATE} --json", ">&-", 1),
        (f"compare {REFERENCE} {REFERENCE}", "<&- >&- 2>&-", 0),
        (f"{REFERENCE} {CANDIDATE}", "<&- >&-", 1),
        ("compare no.such other.such", ">&-", 2),
        ("compare no.such other.such", "2>&-", 2),
        ("--help", ">&-", 0),
    ],
)
def test_a_stream_that_is_closed_changes_no_status(words: str, closed: str, status: int) -> None:
    said = shell(f"$tensordiff {words} {closed}")
    assert said.status == status
    assert "Traceback" not in said.err and "defect" not in said.err
    assert (said.err == "") == (status != 2 or "2>" in closed)


_TALKS = """
import os, torch

class Net(torch.nn.Linear):
    def forward(self, x):
        os.write(1, b"from the model")
        os.write(2, b"from the model")
        return super().forward(x)

def model():
    torch.manual_seed(0)
    return Net(3, 3), torch.ones(2, 3)
"""


def test_what_is_written_does_not_land_in_a_stream_that_was_closed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(_TALKS)
    said = shell(f"cd {tmp_path} && $tensordiff capture py:model.py:model -o dump <&- >&- 2>&- && ls dump")
    assert said.status == 0 and "manifest.json" in said.out
    whole = shell(f"$tensordiff lint {tmp_path}/dump")
    assert whole.status == 0, whole
    assert all(b"from the model" not in file.read_bytes() for file in (tmp_path / "dump").iterdir() if file.is_file())
