"""Access control: every request passes here first, whatever its route.

Any page in a browser can send requests to any address, including this one, and with DNS rebinding it can do so under
its own host name. So a request must use one of the server's names (Host), must come from the server's own pages if it
says where it comes from (Origin, Sec-Fetch-Site), and must contain a secret. The secret is first a token in the address
that ``serve`` prints, and from then on a cookie that scripts cannot read and that is not sent with requests from other
sites. Cookies ignore ports, which is why none of these checks is enough by itself.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN = "token"  # noqa: S105 - the name of the parameter
_OWN_PAGES = ("same-origin", "none")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HTTP_PORT = 80
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_SOURCES = "default-src 'none'; frame-ancestors 'none'"
_HOP = '<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">tensordiff</a>'


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_every_address(host: str) -> bool:
    """Whether it stands for all addresses of this machine, such as 0.0.0.0."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def in_url(host: str) -> str:
    """A host as it appears in a URL and in a Host header."""
    address = _address(host)
    return f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else host.lower()


def host_headers(host: str, port: int, allowed: Iterable[str] = ()) -> frozenset[str]:
    """The valid Host headers for a server that listens on an address; ``allowed`` are more names, or NAME:PORT."""
    if is_every_address(host) or host.lower() == "localhost":
        names: tuple[str, ...] = (host, *_LOOPBACK)
    else:
        names = (host, "localhost") if host in _LOOPBACK else (host,)
    found = {f"{in_url(name)}:{port}" for name in names}
    if port == _HTTP_PORT:
        found |= {in_url(name) for name in names}
    for name in allowed:
        has_port = urlsplit(f"//{name}").port is not None
        found |= {name.lower()} if has_port else {in_url(name), f"{in_url(name)}:{port}"}
    return frozenset(found)


@dataclass(frozen=True)
class Guard:
    """Admits requests that have the token and use one of the server's names."""

    hosts: frozenset[str]
    """The valid values of the Host header."""
    cookie_name: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def protect(self, app: web.Application) -> None:
        """Check all requests to an application, also those to unknown routes."""
        app.middlewares.append(self._check)
        app.on_response_prepare.append(_add_headers)

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_called_by_name(request):
            return _refusal(421, "this server does not go by that name; open the address that tensordiff serve printed")
        if not _is_origin_own(request):
            return _refusal(403, "a page of another origin may not use this server")
        if request.path == "/" and TOKEN in request.query:
            return self._exchange(request)
        if request.headers.get("Sec-Fetch-Site", "none") not in _OWN_PAGES:
            return _refusal(403, "another page may not link here; open the address that tensordiff serve printed")
        if not _is_same(request.cookies.get(self.cookie_name, ""), self.cookie):
            return _refusal(403, "the token is missing; open the whole address that tensordiff serve printed")
        return await handler(request)

    def _is_called_by_name(self, request: web.Request) -> bool:
        hosts = request.headers.getall("Host", [])
        return len(hosts) == 1 and hosts[0].lower() in self.hosts

    def _exchange(self, request: web.Request) -> web.Response:
        """Exchange the token for the cookie, and lead on to an address without the token."""
        if request.method != "GET" or not _is_same(request.query[TOKEN], self.token):
            return _refusal(403, "the token is wrong; is the address of an earlier run of tensordiff serve?")
        url = str(request.rel_url.without_query_params(TOKEN))
        if request.headers.get("Sec-Fetch-Site", "none") in _OWN_PAGES:
            answer = web.Response(status=303, headers={"Location": url})
        else:  # after a redirect from another site's page, the browser would still withhold the cookie
            answer = web.Response(text=_HOP.format(url=html.escape(url)), content_type="text/html")
        answer.set_cookie(self.cookie_name, self.cookie, path="/", httponly=True, samesite="Strict")
        return answer


def _is_origin_own(request: web.Request) -> bool:
    """Whether a request comes from a page of this server.

    A websocket always has an Origin, opening a page never does.
    """
    origins = request.headers.getall("Origin", [])
    own = tuple(f"{scheme}://{request.headers['Host'].lower()}" for scheme in ("http", "https"))
    is_websocket = "upgrade" in request.headers
    return len(origins) == 1 and origins[0].lower() in own if origins or is_websocket else True


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "backslashreplace"), secret.encode())


def _refusal(status: int, sentence: str) -> web.Response:
    return web.Response(text=f"{sentence}\n", status=status)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid caching, framing and sharing with other sites; only the page itself may say what it loads."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("Content-Security-Policy", _NO_SOURCES)
