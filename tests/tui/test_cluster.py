"""The app, with a cluster of workers on this machine."""

from __future__ import annotations

import logging
from dataclasses import replace

from tensordiff.compare.cluster.engine import connect
from tensordiff.tui.notice import LoggedNotices
from tensordiff.tui.threads import in_thread
from tests.tui.app_host import running, samples

LOG = logging.getLogger("tensordiff.compare.cluster.dask_engine")


async def test_workers_started_by_the_app_measure() -> None:
    async with running(replace(samples(), cluster="local:1")) as run:
        assert (run.verdict, run.said()) == ("diverges", "")
    connect("local:1").close()
    connect.cache_clear()


async def test_what_a_cluster_waits_for_is_shown() -> None:
    async with running(samples()) as run:
        in_thread(run.table, "cluster", lambda: LOG.warning("all workers of %s are lost", "tcp://[b]:1"))
        await run.settle()
        assert "all workers of tcp://[b]:1 are lost" in run.said()
    above = logging.getLogger("tensordiff.compare.cluster")
    assert not any(isinstance(one, LoggedNotices) for one in above.handlers)
