"""Commands on dumps in stores: the same answers, no secret anywhere, and a clear end where the store or a disk ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tests import processes
from tests.capture.models import SMALL, script
from tests.cli.command import CANDIDATE, COMMAND, REFERENCE, assert_one_sentence, capturing, environment, process
from tests.making import SAMPLES, numbers, write
from tests.mounts import on_small_disk
from tests.stores import KEYS, S3, WebServer, s3_server
from tests.test_boundaries import BLOCK, COMPARE, RUN, loaded, python


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        for side in ("reference", "candidate"):
            server.put(SAMPLES / side, side)
        yield server


SIDES = ("s3://dumps/reference", "s3://dumps/candidate")


@pytest.mark.parametrize("library", ["fsspec", "s3fs"])
def test_without_the_library_it_says_what_to_install(library: str) -> None:
    script = BLOCK.format(blocked=(library,)) + RUN.format(args=("inspect", "s3://dumps/reference"))
    done = processes.run([sys.executable, "-c", script], cwd=SAMPLES.parent)
    assert "pip install 'tensordiff[remote]'" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("2 ")


def test_local_dumps_load_nothing_of_stores_or_clusters() -> None:
    _, names = loaded(*COMPARE)
    assert not names & {"fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp", "distributed", "dask"}
    assert python("import sys, tensordiff.cli.main; print(*sys.modules, file=sys.stderr)")


def test_a_store_that_is_not_there() -> None:
    nowhere = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    said = process("compare", *SIDES, env=environment(nowhere))
    assert said.status == 2
    assert "s3://dumps/reference: its store failed 4 times" in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_store_that_ends_in_the_middle(tmp_path: Path) -> None:
    tensors = {f"layers.{k}.mlp-output": numbers(700, 1000, seed=k) for k in range(60)}
    with s3_server(tmp_path) as server:
        sides = [server.put(write(tmp_path / side, tensors), side) for side in ("ref", "cand")]
        command = [*COMMAND, "compare", *sides]
        env = environment(server.environment)
        with processes.started(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert any(line.startswith("✓") for line in running.stdout)
            server.kill()
            out, err = running.communicate(timeout=processes.PATIENCE_S)
    assert running.returncode == 2
    assert "its store failed 4 times" in err
    assert "verdict" not in out
    assert "Traceback" not in err


def test_a_disk_that_is_full(s3: S3, tmp_path: Path) -> None:
    """A tensor of 64 MB and more is kept on disk while it is read."""
    url = s3.put(write(tmp_path / "large", {"a-output": numbers(4100, 4100)}), "large")
    (tmp_path / "cache").mkdir()
    env = environment({**s3.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    command = on_small_disk([*COMMAND, "compare", url, url], tmp_path / "cache", "8m")
    done = processes.run(command, env=env)
    assert done.returncode == 2
    assert "cannot take them (no space left on device); set XDG_CACHE_HOME" in done.stderr
    assert "verdict: agrees" not in done.stdout


def test_no_secret_is_shown_or_written(tmp_path: Path) -> None:
    write(tmp_path / "ref", {"a-output": numbers(9)})
    write(tmp_path / "cand", {"a-output": numbers(9) * 2})
    with WebServer(tmp_path) as server:
        sides = [server.address.replace("://", "://me:hush1@") + f"/{side}?token=hush2" for side in ("ref", "cand")]
        report, state = tmp_path / "report.html", tmp_path / "state"
        env = environment({"XDG_STATE_HOME": str(state)})
        said = [process("compare", *sides, *more, env=env) for more in ((), ("--json",))]
        said.append(process("report", *sides, "-o", str(report), env=env))
        said.append(process("inspect", sides[0], env=env))
        server.before = lambda _method, path: 403 if "tensors" in path else None
        said.append(process("compare", *sides, env=env))
    assert [one.status for one in said] == [1, 1, 1, 0, 2], said
    files = [report, *(file for file in state.rglob("*") if file.is_file())]
    everything = "".join(one.out + one.err for one in said) + "".join(file.read_text("latin1") for file in files)
    assert "hush" not in everything
    assert f"{server.address.replace('://', '://me@')}/ref" in said[0].out


@pytest.mark.parametrize(
    "words",
    [
        ("capture", "hf:http://u:hushpass@127.0.0.1:1/demo/model?sig=hushsig", "-o", "{}/out"),
        ("compare", "hf:s3://u:hushpass@runs/x", REFERENCE),
        ("compare", REFERENCE, "max:s3://u:hushpass@runs/x"),
    ],
)
def test_a_source_that_is_a_url_is_refused_at_once(words: tuple[str, ...], tmp_path: Path) -> None:
    said = process(*(word.format(tmp_path) for word in words))
    assert_one_sentence(said, "://…: is a URL, and only dumps may be; copy the model")
    assert "hush" not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "s3://A:hushpass@runs/ref"),
        ("inspect", "s3://A:hush/pass@runs/ref"),
        ("inspect", "http://[::1/ref?sig=hushsig"),
        ("inspect", "http://u:hushpass@[::1/x"),
        ("inspect", "zip://u:hushpass@a::s3://me:hushtwo@b?x=hushsig"),
        ("inspect", REFERENCE, "x://u:hushpass@host?a=hushsig"),
        ("compare", REFERENCE, CANDIDATE, "--rules", "ftp://u:hushpass@[::1"),
        ("capture", "hf:http://u:hushpass@127.0.0.1:1/demo/model?sig=hushsig", "-o", "out"),
    ],
)
def test_tracebacks_show_no_secret(words: tuple[str, ...]) -> None:
    said = process("--debug", *words)
    assert said.status == 2
    assert "Traceback" in said.err
    assert "hush" not in said.out + said.err


def test_a_dump_is_captured_and_converted_into_a_store(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)\n"
    )
    env = environment(s3.environment)
    captured = capturing("capture", f"py:{tmp_path / 'net.py'}:net", "-o", "s3://dumps/captured", "--json", env=env)
    assert (captured.status, json.loads(captured.out)["path"]) == (0, "s3://dumps/captured"), captured.err
    again = capturing("capture", f"py:{tmp_path / 'net.py'}:net", "-o", "s3://dumps/captured", env=env)
    assert again.status == 2
    assert "s3://dumps/captured: holds a dump already" in again.err
    for target in ("s3://dumps/converted", "s3://dumps/converted.safetensors"):
        assert process("convert", "s3://dumps/captured", "-o", target, env=env).status == 0
        assert process("compare", "s3://dumps/captured", target, env=env).status == 0
    assert not list(tmp_path.glob("s3:*"))
    assert not os.path.exists("s3:")  # noqa: PTH110 - as the shell would see it


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
@pytest.mark.parametrize("command", ["capture", "convert"])
def test_nothing_is_run_for_a_web_server(command: str, scheme: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemError('was run')\ndef net(): pass\n")
    source = f"py:{tmp_path / 'net.py'}:net" if command == "capture" else REFERENCE
    said = process(command, source, "-o", f"{scheme}://u:hush@127.0.0.1:1/dump", "--force")
    assert_one_sentence(said, f"{scheme.lower()}://u@127.0.0.1:1/dump: is on a web server, and these are only read")


@pytest.mark.parametrize("words", [("inspect", "{}"), ("convert", REFERENCE, "-o", "{}")], ids=lambda words: words[0])
def test_a_bucket_that_is_not_there_is_named(words: tuple[str, ...], s3: S3) -> None:
    said = process(*(word.format("s3://nobucket/dr") for word in words), env=environment(s3.environment))
    assert_one_sentence(said, "s3://nobucket/dr: its store has no bucket nobucket; check the URL")


def test_credentials_in_the_url_of_a_bucket(s3: S3) -> None:
    asked = len(s3.requests())
    said = process("inspect", "s3://testing:hush2@dumps/dr", env=environment(s3.environment))
    assert_one_sentence(said, 'Invalid bucket name "testing:…@dumps"')
    assert "check the URL; credentials are no part of it" in said.err
    assert "hush2" not in said.err and "try again" not in said.err and len(s3.requests()) == asked


@pytest.mark.slow
def test_what_verify_says_to_inject_a_remote_reference_with(s3: S3, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, env = f"py:{script(tmp_path, SMALL)}:", environment(s3.environment)
    assert capturing("capture", source + "good", "-o", "s3://dumps/streamed", env=env).status == 0
    refused = capturing(
        "capture", source + "bad", "--inject", "s3://dumps/streamed", "-o", str(tmp_path / "x"), env=env
    )
    assert_one_sentence(refused, "copy it with tensordiff convert s3://dumps/streamed -o DIR, and inject DIR")
    out = tmp_path / "out"
    said = capturing("verify", "s3://dumps/streamed", source + "bad", "-o", str(out), "--stream", "--json", env=env)
    assert said.status == 1, said.err
    why, _, line = json.loads(said.out)["left_out"].partition("; inject with: ")
    assert why == "with --stream nothing is injected"
    lines = line.split(", then ")
    assert f"Inject with: {', then '.join(f'`{one}`' for one in lines)}\n" in (out / "summary.md").read_text()
    for one in lines:
        _, *words = one.replace("REF_DIR", str(tmp_path / "reference")).split()
        done = capturing(*words[:-1], str(tmp_path / words[-1]), env=env)
        assert done.status == 0, done.err
    assert open_dump(tmp_path / "DIR").facts["injection"]


def test_other_outputs_are_local_files() -> None:
    said = process("report", REFERENCE, CANDIDATE, "-o", "s3://dumps/report.html")
    assert said.status == 2
    assert "only dumps are read and written there" in said.err


def test_the_same_answer_as_from_a_disk(s3: S3) -> None:
    env = environment(s3.environment)
    here, there = (process("compare", *sides, "--json", env=env) for sides in ((REFERENCE, CANDIDATE), SIDES))
    assert here.status == there.status == 1
    assert there.err == ""
    assert there.out.replace(SIDES[0], REFERENCE).replace(SIDES[1], CANDIDATE) == here.out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "lint", "align", "bisect", "tolerances", "weights"])
def test_every_command_takes_a_url(s3: S3, command: str) -> None:
    count = 1 if command in ("inspect", "lint") else 2
    more = ("--auto",) if command == "bisect" else ()
    env = environment(s3.environment)
    here, there = (process(command, *sides[:count], *more, env=env) for sides in ((REFERENCE, CANDIDATE), SIDES))
    assert (here.status, here.out) == (
        there.status,
        there.out.replace(SIDES[0], REFERENCE).replace(SIDES[1], CANDIDATE),
    )
