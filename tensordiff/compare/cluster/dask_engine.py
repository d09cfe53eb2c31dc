"""Dask distributed as an engine. No other code imports it.

A scheduler at ``tcp://HOST:PORT`` (or ``tls://``) belongs to the user. For ``local:N`` a cluster is started here, with
N single-threaded processes on the loopback interface, and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import sys
from asyncio import AbstractEventLoop, run_coroutine_threadsafe
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from importlib.util import find_spec
from multiprocessing.resource_tracker import ensure_running
from time import monotonic
from typing import Any

from tensordiff.errors import ClusterError, printable

RETRIES = 3
"""How often a task is moved to another worker after its worker was lost."""
_CONNECT_S = 20
_CHECK_EVERY_S = 2.0
_WORKERS_COME_BACK_S = 30.0
"""How long a cluster may be without workers, since a batch system or a nanny restarts lost ones."""
_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
_SCHEDULER = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[^\s/@:\[\]]+):[0-9]{1,5}")
_INSTALL = "pip install 'tensordiff[cluster]'"
_CONFIG = {
    "distributed.scheduler.allowed-failures": RETRIES,
    "distributed.logging.distributed": "critical",
    "distributed.worker.daemon": True,
    "distributed.admin.tick.limit": "1h",  # slow ticks on a busy machine are not worth a message
}

_log = logging.getLogger(__name__)


def check_address(address: str) -> None:
    """Refuse an invalid address before anything is opened for it."""
    if _LOCAL.fullmatch(address) or _SCHEDULER.fullmatch(address):
        return
    if "@" in address:  # it may hold a password, so it is not repeated
        raise ClusterError(
            "--cluster: the address of a Dask scheduler is tcp://HOST:PORT, without a user or a password"
        )
    raise ClusterError(f"--cluster {printable(address)}: is neither tcp://HOST:PORT of a Dask scheduler nor local:N")


class DaskEngine:
    """A Dask cluster."""

    def __init__(self, address: str) -> None:
        check_address(address)
        try:
            import dask
            import distributed
        except ImportError as error:
            raise ClusterError(f"--cluster needs Dask distributed, which is not installed; {_INSTALL}") from error
        self._address, self._cluster = address, None
        self._distributed = distributed
        for name in ("distributed", "distributed.client"):  # Dask sets their levels separately
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._is_connected = False
        self._without_workers_since: float | None = None
        with dask.config.set(_CONFIG):
            if (match := _LOCAL.fullmatch(address)) is not None:
                self._cluster = self._start_workers(int(match[1]))
            elif address.startswith("tls:") and not dask.config.get("distributed.comm.tls.ca-file", None):
                raise ClusterError(
                    f"--cluster {printable(address)}: needs the certificates that Dask's own configuration names "
                    "(distributed.comm.tls), which names none here"
                )
            with self._errors_as_sentences():
                self._client = distributed.Client(
                    self._cluster or address, timeout=_CONNECT_S, set_as_default=False, name="tensordiff"
                )
        self._client.loop.asyncio_loop.set_exception_handler(_ignore_loop_errors)
        self._is_connected = True
        self._refuse_empty()
        if self._cluster is None:
            self._refuse_without_tensordiff()

    def _start_workers(self, count: int) -> Any:
        _start_tracker()
        try:
            return self._distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
                host="127.0.0.1", silence_logs=logging.CRITICAL, memory_limit=0,
            )  # fmt: skip
        except Exception as error:  # whatever Dask raises for a process that did not start or was killed
            raise ClusterError(
                f"--cluster local:{count}: its workers could not be started ({type(error).__name__}: "
                f"{printable(error):.200}); try again, with fewer of them where memory is short, or without --cluster"
            ) from error
        except BaseException:  # Ctrl-C: Dask closes its clusters at exit, and fails for one that has not started
            from distributed.deploy.spec import close_clusters

            atexit.unregister(close_clusters)
            atexit.register(_ignoring_failures, close_clusters)
            raise

    def _refuse_empty(self) -> None:
        if not self._threads():
            self.close()
            raise ClusterError(f"--cluster {printable(self._address)}: has no workers; start some, and try again")

    def _refuse_without_tensordiff(self) -> None:
        """Refuse workers without tensordiff, which would crash on loading a task."""
        found = self._client.run(find_spec, "tensordiff", on_error="return")
        lacking = [worker for worker, spec in found.items() if spec is None or isinstance(spec, ImportError)]
        if lacking:
            self.close()
            raise ClusterError(
                f"--cluster {printable(self._address)}: {len(lacking)} of its {len(found)} workers lack tensordiff "
                f"({printable(lacking[0])}); install the same version there as here"
            )

    def _threads(self) -> int:
        return sum(self._client.nthreads().values())

    def expect_workers(self) -> None:
        """Warn when a cluster has lost all workers, and raise if none comes back in time."""
        if self._threads():
            self._without_workers_since = None
        elif self._without_workers_since is None:
            self._without_workers_since = monotonic()
            _log.warning(
                "--cluster %s: all its workers are lost; waiting %d s for others to start",
                printable(self._address), _WORKERS_COME_BACK_S,
            )  # fmt: skip
        elif monotonic() - self._without_workers_since > _WORKERS_COME_BACK_S:
            raise ClusterError(
                f"--cluster {printable(self._address)}: all its workers were lost before all pairs were measured, and "
                "none came back; look at their logs, start some, and run the command again"
            )

    @property
    def width(self) -> int:
        """The number of threads of all workers; at least 1."""
        return self._width_now()

    def _width_now(self) -> int:
        with self._errors_as_sentences():
            return max(1, self._threads())

    def submit(self, function: Callable[..., Any], *arguments: Any) -> _Ticket:
        """Run a function on some worker, and on another one if that worker is lost."""
        with self._errors_as_sentences():
            return _Ticket(self, self._client.submit(function, *arguments, pure=False, retries=0))

    def gather(self, future: Any) -> Future[Any]:
        """Request a task's result as a future that can be waited for without Dask."""
        return run_coroutine_threadsafe(self._client.gather(future, asynchronous=True), self._client.loop.asyncio_loop)

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here."""
        with contextlib.suppress(Exception):  # when the process ends, nobody can act on a failure
            self._client.close(timeout=5)
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close(timeout=5)

    @contextlib.contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        """Convert Dask's exceptions into ``ClusterError`` with a sentence."""
        try:
            yield
        except ClusterError:
            raise
        except self._distributed.KilledWorker as error:
            raise ClusterError(
                f"--cluster {printable(self._address)}: {RETRIES + 1} workers were lost with the same pairs; "
                "look at their logs, memory first"
            ) from error
        except ModuleNotFoundError as error:
            raise ClusterError(
                f"--cluster {printable(self._address)}: its workers lack {printable(error.name)}; "
                "install the same tensordiff there"
            ) from error
        except (OSError, TimeoutError, CancelledError) as error:
            if self._is_connected:
                raise ClusterError(
                    f"--cluster {printable(self._address)}: its scheduler was lost before all pairs were measured; "
                    "start it and its workers, and run the command again"
                ) from error
            raise ClusterError(
                f"--cluster {printable(self._address)}: no scheduler answers there ({printable(error):.200}); "
                "check the address"
            ) from error
        except Exception as error:
            raise ClusterError(
                f"--cluster {printable(self._address)}: failed ({type(error).__name__}: {printable(error):.300})"
            ) from error


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker with the real stderr, which an app may have replaced."""
    if sys.__stderr__ is not None:
        with contextlib.redirect_stderr(sys.__stderr__):
            ensure_running()


def _ignoring_failures(close: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # when the process ends, nobody can act on a failure
        close()


def _ignore_loop_errors(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore errors of Dask's own event loop; whoever waits for a result gets its exception."""


class _Ticket:
    def __init__(self, engine: DaskEngine, future: Any) -> None:
        self._engine, self._future = engine, future

    def result(self) -> Any:
        """Wait for the result, and raise if the cluster stays without workers.

        A finished task does not end the wait: its result may be lost with the worker that holds it, and is then
        computed again. Dask's own timeout is not used, since it drops an answer that arrives just as the timeout
        expires.
        """
        with self._engine._errors_as_sentences():
            asked = self._engine.gather(self._future)
            while not wait([asked], _CHECK_EVERY_S).done:
                self._engine.expect_workers()
            return asked.result()

    def cancel(self) -> None:
        """Cancel the task."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._future.cancel()
