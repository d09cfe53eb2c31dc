"""Files that should be small: what never ends is refused, and a pipe that a shell made is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tensordiff.util.small_files import TooLong, read_small
from tests.cli.command import CANDIDATE, REFERENCE, assert_one_sentence, process


def test_all_of_it_or_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_small(path, 10) == b"x" * 10
    with pytest.raises(TooLong):
        read_small(path, 9)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"# rules\n",), daemon=True)
    writer.start()
    assert read_small(path) == b"# rules\n"
    writer.join()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
@pytest.mark.parametrize("option", ["--rules", "--tolerances", "--session"])
def test_what_never_ends_is_refused(option: str) -> None:
    said = process("compare", REFERENCE, CANDIDATE, option, "/dev/zero")
    assert said.status == 2
    assert_one_sentence(said, "/dev/zero", "larger than")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_a_suite_and_a_report_that_never_end_are_refused(tmp_path: Path) -> None:
    said = process("verify", "--suite", "/dev/zero", "-o", str(tmp_path / "o"))
    assert said.status == 2
    assert_one_sentence(said, "/dev/zero", "longer than")
