"""Who is let in: every way to ask without a browser. Nothing that is refused starts a process."""

from __future__ import annotations

import asyncio
import http.cookies
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tensordiff.cli.serving.guard import host_headers, is_loopback
from tests.cli.serving.here import Serving, seen, serving, visiting
from tests.processes import PATIENCE_S

ROUTES = ("", "ws", "download/abc", "static/js/textual.js", "static/css/xterm.css", "static/", "nothing")
END = "\n\n"
SAFE = {
    "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY", "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


@pytest.fixture
async def here() -> AsyncIterator[Serving]:
    async with serving() as server:
        yield server


async def ask(here: Serving, path: str = "", method: str = "GET", **options: object) -> tuple[int, str]:
    """The status and the text of an answer, which has all the headers that every answer has."""
    async with aiohttp.ClientSession() as client:
        request = client.request(method, here.address + path, allow_redirects=False, **options)  # type: ignore[arg-type]
        async with request as answer:
            assert {name: answer.headers.get(name) for name in SAFE} == SAFE
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in answer.headers
            return answer.status, await answer.text()


async def raw(here: Serving, text: str) -> tuple[int, str]:
    """The status line and all of the answer to a request as it stands."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    try:
        writer.write(f"{text.removesuffix(END)}\nConnection: close{END}".replace("\n", "\r\n").encode())
        await writer.drain()
        answer = (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode()
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer.split()[1]), answer


def with_cookie(here: Serving) -> str:
    return f"Cookie: {here.guard.cookie_name}={here.guard.cookie}\n"


# --- the token and the cookie --------------------------------------------------------------------


async def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(here: Serving) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{here.with_token}&fontsize=20", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/?fontsize=20")
            cookie = http.cookies.SimpleCookie(answer.headers["Set-Cookie"])[here.guard.cookie_name]
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and cookie["path"] == "/"
        assert cookie.value not in here.with_token
    status, text = await ask(here, cookies=here.cookies)
    assert status == 200 and "textual-terminal" in text and here.guard.token not in text


@pytest.mark.parametrize("route", ROUTES)
async def test_nothing_is_there_without_the_cookie(here: Serving, route: str) -> None:
    for cookies in ({}, {here.guard.cookie_name: "x"}, {here.guard.cookie_name: ""}, {"other": here.guard.cookie}):
        status, text = await ask(here, route, cookies=cookies)
        assert status == 403 and "the token is missing" in text and text.count("\n") == 1


@pytest.mark.parametrize("token", ["", "x", "%C3%A9", "%00", "%ff", "a" * 5000])
async def test_a_wrong_token_gets_no_cookie(here: Serving, token: str) -> None:
    status, answer = await raw(here, f"GET /?token={token} HTTP/1.1\nHost: 127.0.0.1:{here.port}\n\n")
    assert status == 403 and "the token is wrong" in answer and "Set-Cookie" not in answer


async def test_the_token_is_taken_at_the_entrance_alone(here: Serving) -> None:
    for path in ("ws", "static/js/textual.js", "download/a", "/evil.test/"):
        assert (await ask(here, f"{path}?token={here.guard.token}"))[0] == 403
    for method in ("POST", "PUT", "OPTIONS", "HEAD"):
        assert (await ask(here, f"?token={here.guard.token}", method))[0] == 403


async def test_the_cookie_of_another_server_is_none(here: Serving) -> None:
    async with serving() as other:
        renamed = {here.guard.cookie_name: other.guard.cookie}
        for cookies in (other.cookies, renamed, {**other.cookies, **renamed}):
            assert (await ask(here, cookies=cookies))[0] == 403
        assert (await ask(here, f"?token={other.guard.token}"))[0] == 403


async def test_no_two_servers_have_the_same_secrets() -> None:
    async with serving() as one, serving() as other:
        secrets = {one.guard.token, one.guard.cookie, other.guard.token, other.guard.cookie}
    assert len(secrets) == 4 and all(len(secret) >= 43 for secret in secrets)
    assert not any(secret in repr(one.guard) + repr(other.guard) for secret in secrets)


# --- the name it is called by --------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "Host: evil.test:{port}\n", "Host: evil.test\n", "Host: 127.0.0.1\n", "Host: 127.0.0.1:1\n", "Host:\n", "",
        "Host: localhost.:{port}\n", "Host: 127.0.0.1.evil.test:{port}\n", "Host: 127.0.0.1:{port}.evil.test\n",
        "Host: [::1]:{port}\n", "Host: evil.test:{port}\nX-Forwarded-Host: 127.0.0.1:{port}\n",
    ],
)  # fmt: skip
async def test_another_name_is_refused_whatever_else_is_right(here: Serving, said: str) -> None:
    for target in ("/", f"/?token={here.guard.token}", "/static/js/textual.js", "/ws"):
        request = f"GET {target} HTTP/1.1\n{said.format(port=here.port)}{with_cookie(here)}\n"
        status, answer = await raw(here, request)
        assert status in (421, 400) and "Set-Cookie" not in answer and "textual" not in answer.split("\r\n\r\n", 1)[1]


async def test_two_names_are_none(here: Serving) -> None:
    own = f"Host: 127.0.0.1:{here.port}\n"
    for said in (own + "Host: evil.test\n", "Host: evil.test\n" + own):
        assert (await raw(here, f"GET / HTTP/1.1\n{said}{with_cookie(here)}\n"))[0] in (400, 421)


async def test_a_request_line_with_a_name_does_not_help(here: Serving) -> None:
    line = f"GET http://127.0.0.1:{here.port}/ HTTP/1.1\nHost: evil.test\n{with_cookie(here)}\n"
    assert (await raw(here, line))[0] in (400, 421)
    assert (await raw(here, f"GET / HTTP/1.0\n{with_cookie(here)}\n"))[0] == 421


async def test_localhost_is_the_same_place(here: Serving) -> None:
    request = f"GET / HTTP/1.1\nHost: LocalHost:{here.port}\n{with_cookie(here)}\n"
    assert (await raw(here, request))[0] == 200


@pytest.mark.parametrize(
    ("host", "allowed", "found"),
    [
        ("127.0.0.1", (), {"127.0.0.1:81", "localhost:81"}),
        ("::1", (), {"[::1]:81", "localhost:81"}),
        ("localhost", (), {"127.0.0.1:81", "localhost:81", "[::1]:81"}),
        ("10.0.0.7", (), {"10.0.0.7:81"}),
        ("fe80::1", (), {"[fe80::1]:81"}),
        ("127.0.0.1", ("localhost:9000", "Gpu7"),
         {"127.0.0.1:81", "localhost:81", "localhost:9000", "gpu7", "gpu7:81"}),
        ("0.0.0.0", ("gpu7",), {"0.0.0.0:81", "127.0.0.1:81", "localhost:81", "[::1]:81", "gpu7", "gpu7:81"}),
    ],
)  # fmt: skip
def test_the_names_it_goes_by(host: str, allowed: tuple[str, ...], found: set[str]) -> None:
    assert host_headers(host, 81, allowed) == found


def test_on_port_80_a_browser_says_no_port() -> None:
    assert host_headers("127.0.0.1", 80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}


def test_what_only_looks_like_loopback_is_none() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("localhost.evil.test", "127.evil.test", "0.0.0.0", "::", "10.0.0.1", "")))


# --- where it comes from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.test", "http://127.0.0.1", "http://127.0.0.1:1", "file://", "", "http://localhost:{p}"],
)
@pytest.mark.parametrize("route", ["", "ws", "static/js/textual.js"])
async def test_another_origin_is_refused_with_the_cookie_too(here: Serving, origin: str, route: str) -> None:
    said = {"Origin": origin.format(p=here.port)}
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        status, text = await ask(here, route, method, headers=said, cookies=here.cookies)
        assert status == 403 and (method == "HEAD" or "another origin" in text)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
async def test_what_another_page_leads_to_is_refused(here: Serving, site: str) -> None:
    for route in ROUTES:
        assert (await ask(here, route, headers={"Sec-Fetch-Site": site}, cookies=here.cookies))[0] == 403


async def test_a_link_with_the_token_in_another_page_leads_in_by_a_page_of_our_own(here: Serving) -> None:
    status, text = await ask(here, f"?token={here.guard.token}&x='\"><b>", headers={"Sec-Fetch-Site": "cross-site"})
    assert status == 200 and 'http-equiv="refresh"' in text and "<b>" not in text and here.guard.token not in text


@pytest.mark.parametrize("origin", [None, "http://evil.test", "null", "http://localhost:{p}"])
async def test_a_websocket_of_another_page_is_refused(here: Serving, origin: str | None) -> None:
    async with aiohttp.ClientSession(cookies=here.cookies) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"{here.address}ws", origin=origin and origin.format(p=here.port))
    assert refused.value.status == 403
    assert here.server.visits == 0


async def test_a_websocket_without_the_cookie_is_refused(here: Serving) -> None:
    async with aiohttp.ClientSession() as client:
        for url in (f"{here.address}ws", f"{here.address}ws?token={here.guard.token}"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(url, origin=here.address.rstrip("/"))
            assert refused.value.status == 403
    assert here.server.visits == 0


async def test_with_all_of_it_the_app_is_there(here: Serving) -> None:
    async with visiting(here) as visit:
        await seen(visit, b"act_fn")
        assert here.server.visits == 1


# --- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "static/../../../../../../etc/passwd", "static/%2e%2e/%2e%2e/server.py", "static/..%2f..%2fserver.py",
        "static//etc/passwd", "static/js/../../server.py", "static/%00", "static/", "static/js", "download/../ws",
    ],
)  # fmt: skip
async def test_only_the_static_files_are_served(here: Serving, path: str) -> None:
    request = f"GET /{path} HTTP/1.1\nHost: 127.0.0.1:{here.port}\n{with_cookie(here)}\n"
    status, answer = await raw(here, request)
    assert status in (400, 403, 404) and "root:" not in answer and "import" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
async def test_nothing_but_looking(here: Serving, method: str) -> None:
    for route in ROUTES:
        request = f"{method} /{route} HTTP/1.1\nHost: 127.0.0.1:{here.port}\n{with_cookie(here)}Content-Length: 0\n\n"
        assert (await raw(here, request))[0] in (400, 404, 405)
    assert here.server.visits == 0


async def test_head_tells_no_more_than_get(here: Serving) -> None:
    assert (await ask(here, "", "HEAD"))[0] == 403
    assert await ask(here, "", "HEAD", cookies=here.cookies) == (200, "")
    assert (await ask(here, "ws", "HEAD", cookies=here.cookies))[0] == 405


@pytest.mark.parametrize("name", ["Cookie", "Host", "Origin", "X-Long"])
async def test_a_very_long_header_is_refused_and_the_next_visitor_served(here: Serving, name: str) -> None:
    request = f"GET / HTTP/1.1\n{name}: {'a' * 100_000}\n\n"
    status, answer = await raw(here, request)
    assert status in (400, 421) and "Traceback" not in answer
    assert (await ask(here, cookies=here.cookies))[0] == 200


async def test_a_size_of_letters_is_the_usual_one(here: Serving) -> None:
    for size in ("<script>", "-1", "99999999999", "", "0"):
        status, text = await ask(here, "", params={"fontsize": size}, cookies=here.cookies)
        assert status == 200 and 'data-font-size="16"' in text
