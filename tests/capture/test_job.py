from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensordiff.capture import job as job_module
from tensordiff.capture.engines import Engine
from tensordiff.capture.events import Done, Event, Failed, Note, Phase, Progress, decode, encode
from tensordiff.capture.job import Job, Source, parse_source
from tensordiff.capture.process.output import first_facts
from tensordiff.capture.settings import Injection, Settings
from tensordiff.errors import CaptureError


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf:meta/llama", Source("hf", "meta/llama")),
        ("max:/models/a b", Source("max", "/models/a b")),
        ("py:x.py:f", Source("py", "x.py", "f")),
        ("py:a:b.py:f", Source("py", "a:b.py", "f")),
        ("onnx:m.onnx", Source("onnx", "m.onnx")),
        ("dump/", None),
        ("hfx:y", None),
        ("", None),
    ],
)
def test_a_source_is_told_from_a_path(text: str, source: Source | None) -> None:
    assert parse_source(text) == source
    assert source is None or str(source) == text


@pytest.mark.parametrize("text", ["hf:", "py:x.py", "py:x.py:", "py::f"])
def test_a_source_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match=r"does not say what to run; write (hf|py):"):
        parse_source(text)


@pytest.mark.parametrize(
    "url", ["http://u:hush@host/m?sig=hush", "s3://u:hush@runs/x", "s3:/u:hush@runs/x", "file:///m"]
)
@pytest.mark.parametrize("kind", ["hf", "max", "onnx", "vllm", "mlx", "llamacpp", "py"])
def test_a_model_is_no_url(kind: str, url: str) -> None:
    text = f"{kind}:{url}" + (":function" if kind == "py" else "")
    with pytest.raises(CaptureError, match="is a URL, and only dumps may be; copy the model, and give a f") as caught:
        parse_source(text)
    assert str(caught.value).startswith(f"{kind}:{url.partition(':')[0]}://…: ")
    assert "hush" not in str(caught.value)


def test_an_engine_of_another_package_may_take_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "ENGINES", {"far": Engine("far:URL", "far", (), {})})
    assert parse_source("far:http://host/m") == Source("far", "http://host/m")


def test_a_path_becomes_absolute_and_an_id_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Source("hf", "m").absolute() == Source("hf", str(tmp_path / "m"))
    assert Source("hf", "org/m").absolute() == Source("hf", "org/m")


def test_settings_travel_as_json() -> None:
    settings = Settings(
        prompt="a\nb", input_ids=(1, 2), config={"a.b": [1, None]}, inject=Injection("d", "leaves", "r.toml"), steps=3
    )
    job = Job(Source("py", "x", "f"), settings, "out", "replay", {"layer": "a"})
    assert Job.decode(job.encode()) == job
    assert Settings().to_json() == {}


def test_a_dump_does_not_say_that_an_older_one_was_overwritten() -> None:
    job = Job(Source("max", "models/llama"), Settings(seed=3, force=True), "out")
    facts = {"source": "max:models/llama", "framework": "max", "settings": {"seed": 3}, "signature": None}
    assert first_facts(job, "max") == facts


def test_every_engine_begins_its_dumps_with_the_same_facts() -> None:
    files = Path(str(job_module.__file__)).parent.rglob("*.py")
    found = {file for file in files if re.search(r"settings\b.*\.to_json\(\)", file.read_text())}
    assert found == {Path(str(job_module.__file__))}


def test_settings_of_another_version_are_refused() -> None:
    with pytest.raises(CaptureError, match="unknown settings: wizardry"):
        Settings.from_json({"wizardry": 1})


@pytest.mark.parametrize(
    "event",
    [
        Phase("loading", "x"),
        Progress(1, 2, "a[/]"),
        Note("\x1b"),
        Failed("no", "trace\n", None),
        Done("p", 3, {"a": 1}),
    ],
)
def test_events_travel_as_lines(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


@pytest.mark.parametrize("line", ["", "1", "[]", "{}", '{"event": "no"}', '{"event": "phase", "odd": 1}'])
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"event|JSON|Expecting"):
        decode(line)
