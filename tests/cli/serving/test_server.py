"""Visitors: no more than may be, each gone when they leave, and none who runs or writes what was not allowed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tensordiff.cli.serving.server import file_name
from tests import processes
from tests.cli.serving.here import PAINTED, Serving, ended, seen, serving, until, visiting

Visit = aiohttp.ClientWebSocketResponse


async def press(visit: Visit, keys: str) -> None:
    await visit.send_json(["stdin", keys])


def apps() -> list[int]:
    """The processes of visitors."""
    found = processes.children(os.getpid())
    return [pid for pid in found if b"--served" in processes.command_line(pid)]


async def refused(here: Serving) -> tuple[int, str]:
    """How one visitor too many is refused: at the page, and at the websocket behind it."""
    async with aiohttp.ClientSession(cookies=here.cookies) as client:
        async with client.get(here.address) as page:
            text = await page.text()
            assert page.headers["Refresh"] == "2"
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            await client.ws_connect(f"{here.address}ws", origin=here.address.rstrip("/"))
    assert page.status == error.value.status
    return page.status, text


# --- how many ------------------------------------------------------------------------------------


async def test_one_too_many_is_refused_until_somebody_leaves() -> None:
    async with serving(most_visitors=2) as here:
        async with visiting(here) as stays:
            async with visiting(here) as leaves:
                for visit in (stays, leaves):
                    await seen(visit, PAINTED)
                status, text = await refused(here)
                assert status == 503 and "2 visitors are connected" in text and "--max-visitors" in text
                assert len(apps()) == 2
            await until(lambda: here.server.visits == 1)
            async with visiting(here) as comes:
                await seen(comes, PAINTED)
                await until(lambda: len(apps()) == 2)
        await until(lambda: not apps())


@pytest.mark.parametrize("how", ["quits", "vanishes"])
async def test_a_place_is_free_whichever_way_somebody_leaves(how: str) -> None:
    async with serving(most_visitors=1) as here:
        async with visiting(here) as visit:
            await seen(visit, PAINTED)
            if how == "quits":
                await press(visit, "q")
            else:
                assert visit._conn is not None and visit._conn.transport is not None
                visit._conn.transport.abort()
            await until(lambda: here.server.visits == 0 and not apps())
        async with visiting(here) as visit:
            await seen(visit, PAINTED)


async def test_a_process_that_is_killed_ends_the_visit() -> None:
    async with serving(most_visitors=1) as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        os.kill(apps()[0], signal.SIGKILL)
        await ended(visit)
        await until(lambda: here.server.visits == 0)


async def test_a_process_that_does_not_listen_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordiff.cli.serving.visitor._GRACE_S", 0.1)
    async with serving(most_visitors=1) as here:
        async with visiting(here) as visit:
            await seen(visit, PAINTED)
            stopped = apps()[0]
            os.kill(stopped, signal.SIGSTOP)
        await until(lambda: not processes.is_there(stopped))
        async with visiting(here) as visit:
            await seen(visit, PAINTED)


async def test_an_app_that_does_not_start_is_told_and_its_place_free(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    candidate = tmp_path / "no\x1b[31mdump"
    async with serving(most_visitors=1, candidate=str(candidate)) as here:
        async with visiting(here) as visit:
            await ended(visit)
        await until(lambda: here.server.visits == 0)
    said = capfd.readouterr().err
    assert "a visitor's process: tensordiff: " in said and "no\\x1b[31mdump" in said and "\x1b[31m" not in said


# --- what a browser may send ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["x", "{}", "[]", "[" * 100_000, '["stdin", 1]', '["resize", {"width": "a"}]', '["open", "x"]', '"stdin"']
)
async def test_what_our_page_does_not_send_ends_the_visit(text: str) -> None:
    async with serving() as here, visiting(here) as visit:
        await visit.send_str(text)
        await ended(visit)
        assert visit.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_a_terminal_has_a_largest_size() -> None:
    async with serving() as here, aiohttp.ClientSession(cookies=here.cookies) as client:
        url = f"{here.address}ws?width=999999&height=999999"
        async with client.ws_connect(url, origin=here.address.rstrip("/")) as visit:
            await until(apps)
            environment = Path(f"/proc/{apps()[0]}/environ").read_bytes().split(b"\0")
            assert b"COLUMNS=1000" in environment and b"ROWS=1000" in environment
            await visit.close()


async def test_nothing_in_the_current_folder_is_imported() -> None:
    for name in ("numpy", "textual", "tensordiff"):
        Path(f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    async with serving() as here, visiting(here) as visit:
        await seen(visit, PAINTED)
    assert not Path("ran").exists()


# --- what a visitor may do -----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["c", "o", "\x0f"])
async def test_models_are_not_run_again(key: str) -> None:
    async with serving() as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, key)
        await seen(visit, b"off under serve", b"--allow-reruns")


async def test_where_reruns_are_allowed_a_dump_says_for_itself_why_not() -> None:
    async with serving(may="runs") as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, "c")
        painted = await seen(visit, b"which source")
        assert b"off under serve" not in painted


async def fetched(here: Serving, visit: Visit) -> tuple[str, bytes]:
    """The download that the app offers next: its name and its content."""
    async with asyncio.timeout(processes.PATIENCE_S):
        while (message := await visit.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    what, key = json.loads(message.data)
    assert what == "deliver_file_start"
    async with aiohttp.ClientSession(cookies=here.cookies) as client:
        async with client.get(f"{here.address}download/{key}") as file:
            assert file.status == 200 and file.content_type == "application/octet-stream"
            named, content = file.headers["Content-Disposition"], await file.read()
        async with client.get(f"{here.address}download/{key}") as again:
            assert again.status == 404
    return named, content


async def test_a_report_is_a_download_and_nothing_is_written() -> None:
    async with serving() as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, "e")
        await seen(visit, b"as a download")
        await press(visit, "\x13")
        named, content = await fetched(here, visit)
        assert named == 'attachment; filename="candidate-vs-reference.md"'
        assert b"layers.1.mlp.act_fn" in content
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kept"), [("r.md", "r.md"), ('a";\r\nX: "b.csv', "a-X-b.csv"), ("\u202e.html", "-.html"), ("", "report")]
)
def test_no_name_of_a_file_leaves_its_header(name: str, kept: str) -> None:
    assert file_name(name) == kept


async def test_rules_are_a_download_too() -> None:
    async with serving() as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, "m")
        await seen(visit, b"on/off")
        await press(visit, " ")
        await seen(visit, b"not written")
        await press(visit, "w")
        named, content = await fetched(here, visit)
        assert named == 'attachment; filename="rules.toml"' and b"[[rule]]" in content


async def test_where_writing_is_allowed_a_report_is_a_file() -> None:
    async with serving(may="writes") as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, "e")
        await seen(visit, b"Export a report")
        await press(visit, "\x13")
        await until(Path("candidate-vs-reference.md").exists)
        await press(visit, "c")
        await seen(visit, b"off under serve", b"--allow-reruns")


async def test_marks_are_kept_in_the_state_folder(tmp_path: Path) -> None:
    async with serving() as here, visiting(here) as visit:
        await seen(visit, PAINTED)
        await press(visit, " ")
        await until(lambda: list((tmp_path / "state").rglob("*.tensordiff-session.json")))
    assert list(Path.cwd().iterdir()) == []
