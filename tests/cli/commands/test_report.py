"""``tensordiff report``: files by suffix, exit statuses, selections, JUnit, and what changed between two."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence
from tests.making import numbers, write


def test_without_a_file_the_text_is_printed(call: Call) -> None:
    said = call("report", REFERENCE, CANDIDATE)
    assert (said.status, said.err) == (1, "")
    assert said.out.startswith("candidate against reference\n===")
    assert "\nDetailed results, in execution order\n" in said.out


def test_several_files_at_once(call: Call, tmp_path: Path) -> None:
    paths = [tmp_path / f"deep/r{suffix}" for suffix in (".md", ".html", ".json", ".txt", ".csv", ".png")]
    said = call("report", REFERENCE, CANDIDATE, *(word for path in paths for word in ("-o", path)))
    assert said.status == 1
    assert said.out.startswith("layers.1.mlp.act_fn is the first place that is wrong by itself")
    assert said.err.startswith(f"written: {paths[0]}, ")
    assert all(path.stat().st_size > 1000 for path in paths)


def test_what_agrees(call: Call, tmp_path: Path) -> None:
    said = call("report", REFERENCE, MAX, "-o", tmp_path / "r.md")
    assert said.status == 0
    assert said.out.startswith("The two runs agree in all of 45 pairs")


def test_common_options_hold(call: Call, tmp_path: Path) -> None:
    said = call("report", REFERENCE, CANDIDATE, "--only", r"layers\.0", "--threshold", "1", "-o", tmp_path / "r.json")
    assert said.status == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["report"]["settings"]["only"] == r"layers\.0"
    assert found["report"]["settings"]["threshold"] == "1.0"


def test_a_selection(call: Call) -> None:
    said = call("report", REFERENCE, CANDIDATE, "--select", "^norm$", "--title", "My [title]")
    assert said.status == 1
    assert said.out.startswith("My [title]\n")
    assert "\nSelected: norm\n" in said.out
    assert "\nShown here: 1 of 76 pairs, as selected.\n" in said.out


@pytest.mark.parametrize(
    ("select", "part"), [("nothing_is_called_so", "no pair is named like that"), ("(", "not a reg")]
)
def test_a_selection_of_nothing(call: Call, select: str, part: str) -> None:
    assert_one_sentence(call("report", REFERENCE, CANDIDATE, "--select", select), part)


def test_json_on_stdout_alone(call: Call, tmp_path: Path) -> None:
    said = call("report", REFERENCE, CANDIDATE, "--json", "-o", tmp_path / "r.md")
    assert json.loads(said.out)["report"]["sentence"].startswith("layers.1.mlp.act_fn")


def test_a_stamp_only_where_asked(call: Call) -> None:
    assert "\nWritten " not in call("report", REFERENCE, MAX).out
    assert "\nWritten 2" in call("report", REFERENCE, MAX, "--stamp").out


def test_a_suffix_nobody_knows_is_said_first(call: Call, tmp_path: Path) -> None:
    said = call("report", "/nowhere/a", "/nowhere/b", "-o", tmp_path / "r.pdf")
    assert_one_sentence(said, "no report has the suffix '.pdf'", ".md .html .json .txt .csv .png")


def test_what_could_not_be_told_is_written_and_said(call: Call, tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", {"x": numbers(3)}), write(tmp_path / "b", {"y": numbers(4, 4)})
    said = call("report", one, other, "-o", tmp_path / "r.md")
    assert said.status == 2
    assert "nothing could be paired" in said.err
    assert "Whether the two runs agree is unknown" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize("command", ["compare", "report"])
def test_junit(call: Call, tmp_path: Path, command: str) -> None:
    said = call(command, REFERENCE, CANDIDATE, "--junit", tmp_path / "j.xml")
    assert said.status == 1
    root = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert root.get("tests") == "76"
    assert "layers.1.mlp.act_fn" in [
        case.get("name") for case in root.iter("testcase") if case.find("failure") is not None
    ]


@pytest.fixture
def two(call: Call, tmp_path: Path) -> tuple[Path, Path]:
    for candidate, name in ((CANDIDATE, "bad.json"), (MAX, "good.json")):
        call("report", REFERENCE, candidate, "-o", tmp_path / name)
    return tmp_path / "bad.json", tmp_path / "good.json"


def test_better(call: Call, two: tuple[Path, Path]) -> None:
    said = call("report", *two)
    assert said.status == 2
    assert "38 pairs of the first comparison not in the second, first rotary_emb input_0" in said.err
    said = call("report", *two, "--allow-partial")
    assert said.status == 0
    assert said.out.startswith("Better: 9 pairs got better and none worse; the culprit layers.1.mlp.act_fn is gone.\n")


def test_worse(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    outputs = [tmp_path / f"c{suffix}" for suffix in (".md", ".txt", ".json")]
    said = call("report", *two[::-1], *(word for path in outputs for word in ("-o", path)))
    assert said.status == 1
    assert outputs[0].read_text().startswith("### ✗ Worse: 9 pairs got worse")
    assert outputs[1].read_text() == said.out
    assert json.loads(outputs[2].read_text())["is_worse"] is True


def test_what_compare_printed_can_be_given_too(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "now.json").write_text(call("compare", REFERENCE, CANDIDATE, "--json").out)
    said = call("report", two[0], tmp_path / "now.json", "--json")
    assert said.status == 0
    assert json.loads(said.out)["worse"] == []


def test_a_format_that_tells_no_change(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    assert_one_sentence(call("report", *two, "-o", tmp_path / "c.png"), "what changed is written as .md, .txt, .json")


def test_json_that_is_no_comparison(call: Call, two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "other"}')
    assert_one_sentence(call("report", two[0], tmp_path / "x.json"), "is not a comparison")
