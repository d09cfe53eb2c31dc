"""What tests share: an end for those that hang, and watching which files are opened, instead of a clock."""

from __future__ import annotations

import builtins
import gc
import io
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tensordiff.capture import child
from tests.forked_children import FOLDER, ForkingSubprocess, Server
from tests.processes import PATIENCE_S

# Some machines forbid it. Without bytecode every child compiles all that it imports, and there are a thousand children.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("tensordiff", deadline=None)  # a busy machine is no finding
hypothesis.settings.load_profile("tensordiff")


def pytest_xdist_auto_num_workers() -> int:
    """Two a core: tests of the app and of children spend half of their time waiting."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests, which stay to the end, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes what the user keeps: the key that signs captures, sessions, recent pairs."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Path | None]:
    """The folder of a process from which children are forked that find torch imported."""
    if sys.platform != "linux":
        yield None
        return
    server = Server()
    yield server.folder
    server.close()


def _environment_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(scope="module", autouse=True)
def environment_of_module() -> Iterator[None]:
    """What fixtures of a module have torch set, as the folder of its compiler, is no variable of the next module."""
    yield from _environment_put_back()


@pytest.fixture(autouse=True)
def own_environment(environment_of_module: None) -> Iterator[None]:
    """What a capture within this process sets, as for deterministic runs, is no variable of the next test."""
    yield from _environment_put_back()


@pytest.fixture(autouse=True)
def forked_children(
    request: pytest.FixtureRequest,
    own_environment: None,
    fork_server: Path | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Children of captures are forked, unless a test is about the process itself."""
    if fork_server is not None and request.node.get_closest_marker("new_children") is None:
        monkeypatch.setattr(child, "subprocess", ForkingSubprocess(fork_server))
        monkeypatch.setenv(FOLDER, str(fork_server))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a test that hangs, whatever it waits for: a child's events, a thread, a worker of the app."""

    # MAX compiles on all cores: minutes, where another program wants them too.
    patience_s = (6 if item.get_closest_marker("max") else 2) * PATIENCE_S

    def give_up(*_: object) -> None:
        pytest.fail(f"it hung: it was not over after {patience_s} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(patience_s)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files opened by the test, each as often as it was. Clear it after making some."""
    names: list[str] = []

    def noting(real: Any) -> Any:
        def noted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int):
                names.append(Path(os.fsdecode(path)).name)
            return real(path, *args, **kwargs)

        return noted

    for module in (os, io, builtins):
        monkeypatch.setattr(module, "open", noting(module.open))
    return names
