"""What a person sees: a terminal of 80 by 24, real as far as the command can tell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tensordiff.util.text_width import columns
from tests import processes
from tests.cli.command import CANDIDATE, COMMAND, MAX, REFERENCE, environment, process
from tests.making import SAMPLES, numbers, save, save_npy, truncate

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RED = "\x1b[31m"


def on_terminal(*args: str, wide: int = 80, **env: str) -> tuple[int, str]:
    """Run with stdout on a terminal; the status and all that was written to it."""
    env = environment({"TERM": "xterm-256color"} | env)
    with processes.on_terminal([*COMMAND, *args], wide, env=env, stderr=subprocess.PIPE) as (terminal, running):
        status = terminal.read_until_ended(running)
        assert running.stderr is not None
        assert b"Traceback" not in running.stderr.read()
    return status, terminal.text


def widest(text: str) -> int:
    return max(columns(COLOUR.sub("", line)) for line in text.split("\n"))


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two dumps with all that makes lines long, under a long path."""
    folder = tmp_path_factory.mktemp("a_long_name_for_a_folder_that_holds_dumps_of_a_model")
    array = numbers(4, 4)
    tensors = {f"model.layers.{i}.{'very' * 20}.deep-output": array for i in range(3)}
    tensors |= {"語" * 60: array, "a.b": array, "tiny": array * np.float32(1e-30)}
    reference = save_npy(folder / "reference", tensors | {f"only.{'here' * 30}": array})
    candidate = save_npy(folder / "candidate", tensors | {"語" * 60: -array, "tiny": array, "a.b": numbers(2, 8)})
    truncate(candidate / f"model.layers.1.{'very' * 20}.deep-output.npy")
    return str(reference), str(candidate)


def test_the_samples_fit() -> None:
    status, seen = on_terminal("compare", REFERENCE, CANDIDATE)
    assert status == 1
    assert widest(seen) <= 80
    assert "first at layers.1.mlp.act_fn" in seen


def test_the_demo_fits() -> None:
    status, seen = on_terminal("demo")
    assert status == 0
    assert widest(seen) <= 80


@pytest.mark.parametrize("command", [("compare",), ("lint",)])
def test_findings_and_orphans_fit(command: tuple[str]) -> None:
    _, seen = on_terminal(*command, REFERENCE, MAX)
    assert "does not say" in seen
    assert widest(seen) <= 80


def test_awkward_dumps_fit(awkward: tuple[str, str]) -> None:
    status, seen = on_terminal("compare", *awkward)
    assert status == 1
    assert widest(seen) <= 80
    assert "…" in seen
    assert "is truncated" in seen


@pytest.mark.parametrize("options", [(), ("--stats",)])
def test_inspect_fits(awkward: tuple[str, str], options: tuple[str, ...]) -> None:
    _, seen = on_terminal("inspect", awkward[1], *options)
    assert widest(seen) <= 80
    assert "float32" in seen


def test_a_wide_terminal_shows_more() -> None:
    _, narrow = on_terminal("compare", REFERENCE, CANDIDATE)
    _, wide = on_terminal("compare", REFERENCE, CANDIDATE, wide=140)
    assert "cosine" not in narrow
    assert "cosine" in wide
    assert 100 < widest(wide) <= 140


def test_what_is_wrong_is_red_and_has_a_glyph() -> None:
    _, seen = on_terminal("compare", REFERENCE, CANDIDATE)
    assert re.search(rf"^{re.escape(RED)}✗    57 layers\.1\.mlp\.act_fn", seen, re.M)


@pytest.mark.parametrize("command", [("compare", REFERENCE, CANDIDATE), ("lint", REFERENCE, MAX), ("inspect", MAX)])
def test_no_color_means_none(command: tuple[str, ...]) -> None:
    _, seen = on_terminal(*command, NO_COLOR="1")
    assert "\x1b" not in seen


def test_no_color_set_to_nothing_means_nothing() -> None:
    assert RED in on_terminal("compare", REFERENCE, CANDIDATE, "-q", NO_COLOR="")[1]


def test_names_are_whole_when_piped(tmp_path: Path) -> None:
    name = f"model.layers.0.{'very' * 50}.deep"
    made = str(save(tmp_path / "d.safetensors", {name: np.ones(2, np.float32)}))
    said = process("compare", made, made)
    assert name.removeprefix("model.") in said.out
    assert "…" not in said.out


def test_json_is_one_line_on_a_terminal_too() -> None:
    status, seen = on_terminal(
        "compare", REFERENCE, CANDIDATE, "--json", "--injected", str(SAMPLES / "candidate_injected")
    )
    assert status == 1
    assert seen.count("\n") == 1
    assert "\x1b" not in seen
