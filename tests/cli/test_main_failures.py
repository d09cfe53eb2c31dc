"""Every failure is one sentence on stderr and status 2; a traceback only when asked for."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.cli.command import CANDIDATE, REFERENCE, Call, assert_one_sentence, environment, process, shell
from tests.making import numbers, save, save_npy, truncate, write

ARRAY = numbers(64, 64)


def test_a_path_that_is_not_there() -> None:
    said = process("compare", "no/such/dump", CANDIDATE)
    assert_one_sentence(said, "no/such/dump: no such file or folder")
    assert said.out == ""


def test_the_second_path_is_checked_too(call: Call) -> None:
    assert_one_sentence(call("compare", REFERENCE, "no/such"), "no/such: no such file or folder")


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_and_the_sentence(call: Call, place: str) -> None:
    args = ["compare", "nowhere", CANDIDATE]
    said = call(*(["--debug", *args] if place == "before" else [*args, "--debug"]))
    assert said.status == 2
    assert said.err.startswith("Traceback")
    assert said.err.splitlines()[-1] == "tensordiff: nowhere: no such file or folder; check the path"


LATE = """
import os, signal, sys
from tensordiff.cli.main import run

def interrupted(status, leave=sys.exit):
    os.kill(os.getpid(), signal.SIGINT)
    leave(status)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit = interrupted
run()
"""


def test_ctrl_c_after_the_end_changes_nothing() -> None:
    done = processes.run([sys.executable, "-c", LATE, "compare", REFERENCE, CANDIDATE, "--quiet"], env=environment())
    assert (done.returncode, done.stderr) == (1, "")


WITHIN_TEXT = """
from tensordiff.cli import main

def interrupted(*_):
    exec("raise KeyboardInterrupt")  # as where a dataclass is made

main._exit_status = interrupted
main.run()
"""


def test_ctrl_c_while_a_module_makes_its_classes_has_its_status(tmp_path: Path) -> None:
    (tmp_path / "within_text.py").write_text(WITHIN_TEXT)
    done = processes.run([sys.executable, "-m", "within_text"], env=environment(), cwd=tmp_path)
    assert done.returncode == 130


WITHIN_DEL = """
import os, signal, sys, threading, time
from tensordiff.cli import main

start = threading.Thread.start

def slow_start(thread):  # as on a busy machine
    start(thread)
    time.sleep(0.2)

threading.Thread.start = slow_start

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.{signal})

def interrupted(*_):
    Dropped()
    time.sleep({patience})

signal.signal(signal.SIGINT, signal.default_int_handler)
main._exit_status = interrupted
main.run()
"""


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_an_object_is_destroyed_is_not_lost(number: str, status: int) -> None:
    """Python prints what is raised there, and goes on."""
    text = WITHIN_DEL.format(signal=number, patience=2 * processes.PATIENCE_S)
    done = processes.run([sys.executable, "-c", text], env=environment())
    assert (done.returncode, done.stderr) == (status, "")


LOUD = r"""
import sys
print("\x1b]0;owned\x07one\ttwo")
sys.stdout.flush()

def fails():
    raise RuntimeError("first \x1b[31m line\nsecond\r\nthird \u2028 \u202e")

def dies():
    import os
    print("last \x1b[2J words\n\nthen silence", flush=True)
    os._exit(7)
"""


@pytest.mark.parametrize("function", ["fails", "dies"])
def test_debug_shows_what_a_child_said_line_by_line_and_without_its_escapes(
    call: Call, tmp_path: Path, function: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "loud.py").write_text(LOUD)
    said = call("--debug", "capture", f"py:{tmp_path / 'loud.py'}:{function}", "-o", tmp_path / "d")
    assert said.status == 2
    assert all(line.isprintable() for line in said.err.split("\n"))
    if function == "fails":
        assert "\nRuntimeError: first \\x1b[31m line\nsecond\nthird \\u2028 \\u202e\n" in said.err
    else:
        assert "\n\\x1b]0;owned\\x07one" in said.err
        assert "\nlast \\x1b[2J words\n\nthen silence\n" in said.err
    assert said.err.splitlines()[-1].startswith("tensordiff: py:")


def test_json_that_fails_leaves_stdout_empty(call: Call) -> None:
    said = call("compare", REFERENCE, "nowhere", "--json")
    assert_one_sentence(said, "nowhere")
    assert said.out == ""


def test_a_name_too_long_for_any_file(call: Call) -> None:
    assert_one_sentence(call("compare", "./" + "a" * 5000, CANDIDATE), "file name too long")


def test_a_name_that_would_colour_the_terminal(call: Call) -> None:
    assert_one_sentence(call("compare", "./\x1b[31m\nred", CANDIDATE), r"\x1b[31m\nred")


def test_an_option_that_would_colour_the_terminal(call: Call) -> None:
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE, "--\x1b[31mx"), "\\x1b[31mx")


def test_an_empty_folder(call: Call, tmp_path: Path) -> None:
    assert_one_sentence(call("compare", tmp_path, CANDIDATE), str(tmp_path), "is an empty folder")


def test_a_folder_without_tensors_points_to_one_inside(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "run" / "a.safetensors", {"a": ARRAY})
    assert_one_sentence(call("compare", tmp_path, CANDIDATE), f"did you mean {tmp_path / 'run'}?")


def test_a_file_that_is_no_dump(call: Call, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert_one_sentence(call("compare", tmp_path / "notes.txt", CANDIDATE), "notes.txt: is not a tensor file")


def test_a_truncated_file(call: Call, tmp_path: Path) -> None:
    cut = truncate(save(tmp_path / "cut.safetensors", {"a": ARRAY}))
    assert_one_sentence(call("compare", cut, CANDIDATE), "cut.safetensors")


def test_a_truncated_tensor_among_whole_ones(call: Call, tmp_path: Path) -> None:
    reference = save_npy(tmp_path / "r", {"a": ARRAY, "b": ARRAY})
    candidate = save_npy(tmp_path / "c", {"a": ARRAY, "b": ARRAY})
    truncate(candidate / "b.npy")
    said = call("compare", reference, candidate)
    assert_one_sentence(said, "1 of 2 pairs could not be compared, first b: ", str(candidate / "b.npy"), "is truncated")
    assert "✓     0 a" in said.out
    assert "?     1 b" in said.out
    assert said.out.endswith("verdict: unknown\n")


def test_what_diverges_beside_it_still_counts(call: Call, tmp_path: Path) -> None:
    reference = save_npy(tmp_path / "r", {"a": ARRAY, "b": ARRAY})
    candidate = save_npy(tmp_path / "c", {"a": -ARRAY, "b": ARRAY})
    truncate(candidate / "b.npy")
    said = call("compare", reference, candidate)
    assert (said.status, said.err) == (1, "")


def test_a_file_of_many_that_cannot_be_read_leaves_it_unsure(call: Call, tmp_path: Path) -> None:
    for side in "rc":
        for name in "ab":
            save(tmp_path / side / f"{name}.safetensors", {name: ARRAY})
    truncate(tmp_path / "c" / "b.safetensors")
    said = call("compare", tmp_path / "r", tmp_path / "c")
    assert_one_sentence(said, str(tmp_path / "c" / "b.safetensors"), "was not compared")
    assert "✓     0 a" in said.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_nobody_may_read(call: Call, tmp_path: Path) -> None:
    path = save(tmp_path / "secret.safetensors", {"a": ARRAY})
    path.chmod(0)
    assert_one_sentence(call("compare", path, CANDIDATE), "secret.safetensors", "permission denied")
    path.chmod(stat.S_IRUSR)


def test_a_fifo_is_not_waited_for(call: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    assert_one_sentence(call("compare", tmp_path / "x.safetensors", CANDIDATE), "x.safetensors")


def test_a_loop_of_links(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert_one_sentence(call("compare", tmp_path / "a", CANDIDATE), str(tmp_path / "a"))


def test_nothing_paired(call: Call, tmp_path: Path) -> None:
    reference, candidate = (
        save(tmp_path / "r.safetensors", {"a": ARRAY}),
        save(tmp_path / "c.safetensors", {"b": ARRAY}),
    )
    for more in ((), ("--json",)):
        said = call("compare", reference, candidate, "--no-learn", *more)
        assert_one_sentence(said, "nothing could be paired", "--rules", str(reference), str(candidate))


def test_two_dumps_without_tensors(call: Call, tmp_path: Path) -> None:
    empty = write(tmp_path / "d", {})
    assert_one_sentence(call("compare", empty, empty), "nothing could be paired")


def test_shapes_that_no_view_reconciles(call: Call, tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", {"a": numbers(2, 3)})
    candidate = save(tmp_path / "c.safetensors", {"a": numbers(3, 2)})
    assert_one_sentence(call("compare", reference, candidate), "shapes [2, 3] and [3, 2]")


def test_an_unreadable_injected_run(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path / "d", {"a": ARRAY})
    truncate(save_npy(tmp_path / "i", {"a": ARRAY}) / "a.npy")
    said = call("compare", made, made, "--injected", tmp_path / "i")
    assert_one_sentence(said, str(tmp_path / "i" / "a.npy"))


@pytest.mark.parametrize("option", ["--injected", "--golden"])
def test_an_expression_that_fails_on_a_third_dump_concerns_its_pair_alone(
    call: Call, tmp_path: Path, option: str
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[map]]\nreference = 'c'\ncandidate = 'cat(a, b)'\n")
    a, b, d = numbers(4, 3), numbers(4, 2), numbers(4)
    reference = save(tmp_path / "r.safetensors", {"c": np.concatenate([a, b], 1), "d": d})
    candidate = save(tmp_path / "c.safetensors", {"a": a, "b": b, "d": d})
    third = save(tmp_path / "t.safetensors", {"a": a, "b": numbers(5, 2), "d": d})
    said = call("compare", reference, candidate, "--rules", rules, option, third)
    assert_one_sentence(said, "1 of 2 pairs could not be compared, first c: cat: [5, 2] and [4, 3]")
    assert "✓ 1 agrees" in said.out


def test_an_expression_that_fails_at_the_embedding_ends_nothing_else(call: Call, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[map]]\nreference = 'embed_tokens'\ncandidate = 'cat(a, b)'\n")
    d = numbers(4)
    reference = save(tmp_path / "r.safetensors", {"embed_tokens": numbers(4, 6), "d": d})
    candidate = save(tmp_path / "c.safetensors", {"a": numbers(4, 3), "b": numbers(5, 3), "d": d})
    said = call("compare", reference, candidate, "--rules", rules)
    assert_one_sentence(said, "1 of 2 pairs could not be compared, first embed_tokens: cat: [5, 3] and [4, 3]")
    assert "✓ 1 agrees" in said.out


def test_a_source_is_not_taken_for_a_path(call: Call) -> None:
    assert_one_sentence(
        call("py:model.py:build", CANDIDATE), "model.py:build: there is no such file; write py:FILE.py:FUNCTION"
    )


def test_a_full_disk() -> None:
    said = shell(f"$tensordiff compare {REFERENCE} {CANDIDATE} > /dev/full")
    assert_one_sentence(said, "No space left on device")


def test_a_defect_of_ours_is_not_a_divergence(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("tensordiff.session.paired_dumps.align", defect)
    said = call("compare", REFERENCE, CANDIDATE)
    assert_one_sentence(said, "a defect of tensordiff (ZeroDivisionError: of all things)", "--debug")


def test_too_little_memory(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object) -> None:
        np.empty(1 << 62, np.uint8)

    monkeypatch.setattr("tensordiff.session.paired_dumps.align", hungry)
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE), "not enough memory")


def test_stderr_that_takes_nothing() -> None:
    assert shell("$tensordiff compare nowhere nowhere 2>/dev/full; echo $?").out == "2\n"
