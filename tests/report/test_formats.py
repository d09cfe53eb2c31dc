"""Every format: what it has, that names do no harm in it, and that the same input makes the same bytes."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tensordiff.compare.row import Row
from tensordiff.errors import WriteError
from tensordiff.report import write_report
from tensordiff.report.html import page_data
from tensordiff.report.model import build_report
from tests import processes
from tests.making import SAMPLES, numbers
from tests.report.comparisons import FORMATS, HOSTILE, compared, report, samples, written

A = numbers(2, 6)


@pytest.fixture(params=HOSTILE, ids=range(len(HOSTILE)))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def hostile(name: str) -> dict[str, np.ndarray]:
    """A culprit, an orphan and an innocent of that name."""
    return {"first": A, name: A, f"{name}.lost": A}


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_same_input_makes_the_same_bytes(suffix: str) -> None:
    once, again = (written(build_report(*samples()), suffix) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ({"a": A}, {"b": numbers(5)}),
        ({"a": A}, {"a": None}),
        ({"a": np.float32(1)}, {"a": np.float32(2)}),
        ({"a": np.zeros((0, 3), "f4")}, {"a": np.zeros((0, 3), "f4")}),
        ({"a": np.zeros(4, "f4")}, {"a": np.full(4, np.nan, "f4")}),
        ({"a": np.zeros(4, "f4")}, {"a": np.array([np.inf, 0, 0, 0], "f4")}),
        ({"a": A}, {"a": numbers(3, 7)}),
        ({"a-input_0": A}, {"a-input_0": A + 1}),
    ],
    ids=["orphans", "unreadable", "0-d", "empty", "nan", "inf", "shapes", "inputs"],
)
def test_odd_comparisons(suffix: str, reference: dict[str, np.ndarray], candidate: dict[str, np.ndarray]) -> None:
    session, outcome = compared(reference, candidate)
    assert written(build_report(session, outcome), suffix)


def test_text_has_all_that_verify_layers_prints() -> None:
    text = report(*samples(), ".txt")
    for heading in (
        "Execution order verification", "Totals", "MSE statistics, of outputs", "Components: MSE of their outputs",
        "Culprit: layers.1.mlp.act_fn", "Culprits and victims", "Is the comparison fair?", "Not paired",
        "Detailed results, in execution order", "Settings and versions",
    ):  # fmt: skip
        assert f"\n{heading}\n---" in text
    assert re.search(r"\n✗    57 layers.1.mlp.act_fn +\[1, 9, 128\] +4.87e-05 8.28e-02 4.61e-02 8.28e-02  rel_l2", text)
    assert "\nfinite     35\n" in text
    assert "versions.torch: reference -, candidate 2.13.0+cpu" in text


def test_text_keeps_every_name_on_its_line(name: str) -> None:
    session, outcome = compared(hostile(name), {"first": A, name: -A})
    text = report(session, outcome, ".txt")
    assert all(line.isprintable() for line in text.split("\n"))


def test_text_cuts_a_name_without_end() -> None:
    long = {"a" * 5000: A, "b" * 5000: A}
    lines = report(*compared({**long, "c": A}, {"a" * 5000: -A, "c": A}), ".txt").splitlines()
    assert f"reference  {'a' * 5000}" in lines  # once, where the culprit is told
    assert max(len(line) for line in lines if "a" * 5000 not in line) < 700


@pytest.mark.parametrize("suffix", [".md", ".html", ".json", ".txt"])
def test_what_the_values_make_doubtful(suffix: str) -> None:
    tensors = {"first": A, "last": np.zeros((2, 6), "f4")}
    told = report(*compared(tensors, tensors), suffix)
    assert "last" in told
    assert "1 output is all zero" in told


def test_markdown_is_short_and_folds_the_rest() -> None:
    text = report(*samples(), ".md")
    head = text[: text.index("<details>")]
    assert len(head.splitlines()) < 30
    assert head.startswith("### ✗ diverges: candidate against reference\n\n**`layers.1.mlp.act_fn`** is the first")
    assert text.count("<details>") == text.count("</details>") == 5


def test_markdown_stays_within_what_trackers_take() -> None:
    many = {f"layers.{i}.mlp": A for i in range(3000)}
    session, outcome = compared(many, many | {"layers.2999.mlp": -A})
    text = report(session, outcome, ".md")
    assert len(text) < 65_536
    assert "`layers.2999.mlp`" in text


def test_markdown_names_are_code_and_nothing_else(name: str) -> None:
    session, outcome = compared(hostile(name), {"first": A, name: -A})
    text = report(session, outcome, ".md")
    assert all(line.isprintable() for line in text.split("\n"))
    tags = set(re.findall(r"<[!/]?[a-z-]*", text))
    assert tags <= {"<details", "</details", "<summary", "</summary", "<code", "</code", "<!--"}
    assert "@everyone" not in re.sub(r"`[^`]*`", "", text)
    table = [line for line in text.split("\n") if line.startswith("| ✗")]
    assert table
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {10}


def test_csv_has_a_line_a_pair() -> None:
    lines = list(csv.DictReader(io.StringIO(report(*samples(), ".csv"))))
    assert len(lines) == 76
    (culprit,) = (line for line in lines if line["is_culprit"] == "1")
    assert culprit["name"] == "layers.1.mlp.act_fn"
    assert float(culprit["injected_rel_l2"]) == pytest.approx(0.0828, rel=1e-2)
    assert culprit["shape"] == "1x9x128"


def test_csv_cells_are_never_formulas(name: str) -> None:
    session, outcome = compared(hostile(name), {"first": A, name: -A})
    lines = list(csv.reader(io.StringIO(report(session, outcome, ".csv"))))
    assert {len(line) for line in lines} == {len(lines[0])}
    texts = [cell for line in lines[1:] for cell in (line[1], line[-1], line[-2])]
    assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert all(cell.isprintable() for cell in texts)


def test_json_is_the_contract_s_with_the_report_beside() -> None:
    found = json.loads(report(*samples(), ".json"))
    assert found["schema"] == "tensordiff.compare/1"
    assert found["culprit"]["name"] == "layers.1.mlp.act_fn"
    assert found["culprit"]["worst"][0]["index"] == [0, 8, 67]
    assert found["report"]["close"][0]["inputs"] == [{"index": 56, "verdict": "agrees"}]
    assert found["report"]["victims"] == [61, 69, 73]


def test_json_of_a_selection_has_only_its_pairs() -> None:
    session, outcome = samples()
    model = build_report(session, outcome, [row for row in outcome.rows if row.pair.name == "norm"])
    found = json.loads(written(model, ".json"))
    assert [pair["name"] for pair in found["pairs"]] == ["norm", "norm"]
    assert found["culprit"]["name"] == "layers.1.mlp.act_fn"


def test_json_keeps_names_as_they_are(name: str) -> None:
    session, outcome = compared(hostile(name), {"first": A, name: -A})
    found = json.loads(report(session, outcome, ".json"))
    assert found["culprit"]["reference"] == name


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(text: str) -> Page:
    found = Page()
    found.feed(text)
    return found


def test_html_needs_nothing_else() -> None:
    found = page(report(*samples(), ".html"))
    attributes = {key for _, attrs in found.tags for key in attrs}
    assert not attributes & {"src", "href", "srcset", "action", "style"}
    (policy,) = (attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_html_escapes_names(name: str) -> None:
    plain = page(report(*compared(hostile("x"), {"first": A, "x": -A}), ".html"))
    found = page(report(*compared(hostile(name), {"first": A, name: -A}), ".html"))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert not [key for _, attrs in found.tags for key in attrs if key.startswith("on")]


def test_html_carries_rows_as_data() -> None:
    text = report(*samples(), ".html")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    data = json.loads(found[1])
    assert len(data["rows"]["index"]) == 76
    assert data["rows"]["name"][data["culprit"]] == "layers.1.mlp.act_fn"
    assert {len(column) for column in data["rows"].values()} == {76}
    assert len(data["heats"][0]["cells"]) == 9


def test_png_is_a_picture_of_both_scenarios() -> None:
    session, outcome = samples()
    with_injection = written(build_report(session, outcome), ".png")
    session, outcome = samples(injected=False)
    without = written(build_report(session, outcome), ".png")
    assert with_injection.startswith(b"\x89PNG")
    heights = [int.from_bytes(picture[20:24]) for picture in (with_injection, without)]
    assert heights[0] > 1.5 * heights[1]


@pytest.mark.slow
def test_png_draws_any_name(name: str) -> None:
    session, outcome = compared(hostile(name), {"first": A, name: -A})
    assert written(build_report(session, outcome), ".png").startswith(b"\x89PNG")


def test_a_stamp_is_told_only_where_asked(tmp_path: Path) -> None:
    session, outcome = compared({"a": A}, {"a": A})
    for suffix in (".md", ".html", ".txt", ".json"):
        write_report(session, outcome, tmp_path / f"r{suffix}", stamp="on a Sunday")
        assert "on a Sunday" in (tmp_path / f"r{suffix}").read_text()


def test_an_unknown_suffix(tmp_path: Path) -> None:
    session, outcome = compared({"a": A}, {"a": A})
    with pytest.raises(WriteError, match=r"no report has the suffix '.pdf'; use one of .md .html"):
        write_report(session, outcome, tmp_path / "r.pdf")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    session, outcome = compared({"a": A}, {"a": A})
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        write_report(session, outcome, tmp_path / "file" / "r.md")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_a_picture_loads_matplotlib(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.report import write_report
from tensordiff.report.html import page_data
session = Session.open(Request(Path({str(SAMPLES / "reference")!r}), Path({str(SAMPLES / "candidate")!r})))
outcome = session.outcome(session.rows())
for suffix in {FORMATS!r}:
    write_report(session, outcome, Path({str(tmp_path)!r}) / f"r{{suffix}}")
    print(suffix, "matplotlib" in sys.modules)
"""
    done = processes.run([sys.executable, "-c", script], check=True)
    assert done.stdout.split() == [word for s in FORMATS for word in (s, str(s == ".png"))]


def test_a_picture_without_matplotlib_is_refused_before_the_work(tmp_path: Path) -> None:
    """As in a core install: a sentence that names the extra; every other format is written."""
    command = ["report", str(SAMPLES / "reference"), str(SAMPLES / "candidate"), "-o"]
    script = "import sys; sys.modules['matplotlib'] = None; from tensordiff.cli.main import run; run()"
    done = processes.run([sys.executable, "-c", script, *command, str(tmp_path / "r.png")])
    assert done.returncode == 2 and not done.stdout and not list(tmp_path.iterdir())
    assert "pip install 'tensordiff[png]'" in done.stderr and len(done.stderr.splitlines()) == 1
    for suffix in FORMATS:
        if suffix != ".png":
            done = processes.run([sys.executable, "-c", script, *command, str(tmp_path / f"r{suffix}")])
            assert done.returncode == 1 and (tmp_path / f"r{suffix}").stat().st_size, suffix


def test_verify_without_matplotlib_leaves_the_picture_out(tmp_path: Path) -> None:
    command = ["verify", str(SAMPLES / "reference"), str(SAMPLES / "candidate"), "-o", str(tmp_path / "out")]
    script = "import sys; sys.modules['matplotlib'] = None; from tensordiff.cli.main import run; run()"
    done = processes.run([sys.executable, "-c", script, *command])
    assert done.returncode == 1, done.stderr
    names = {path.name for path in (tmp_path / "out" / "without_injection").iterdir()}
    assert "report.html" in names and "mse_plot.png" not in names
    assert "mse_plot.png" not in (tmp_path / "out" / "summary.md").read_text()


class Counted(tuple[Row, ...]):
    """Rows that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Row]:
        self.passes += 1
        return super().__iter__()


def _passes(count: int) -> int:
    """How often the page's data go through so many rows."""
    tensors = {f"layer{k}-{port}": A for k in range(count) for port in ("input_0", "output")}
    session, outcome = compared(tensors, tensors)
    rows = Counted(outcome.rows)
    page_data(replace(build_report(session, outcome), rows=rows))
    return rows.passes


def test_the_data_of_the_page_grow_with_the_rows_and_not_with_their_square() -> None:
    assert _passes(2) == _passes(40)
