"""Stores for tests: a real S3 server (moto's) in a process of its own, and a web server that can misbehave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests import processes

BUCKET = "dumps"
_SERVE = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=True)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hush-a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class S3:
    """A server that speaks S3, and keeps a log of what it was asked."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.process, self._log = process, log
        self.address = f"http://127.0.0.1:{port}"
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": self.address}
        self._send("PUT", "")

    def _send(self, method: str, key: str, data: bytes = b"") -> None:
        request = urllib.request.Request(f"{self.address}/{BUCKET}/{key}", data=data, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request")
        with urllib.request.urlopen(request, timeout=processes.PATIENCE_S):
            pass

    def put(self, source: Path, key: str) -> str:
        """Store a file, or a folder with all that is in it; the URL of it."""
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file():
                below = f"/{file.relative_to(source).as_posix()}" if source.is_dir() else ""
                self._send("PUT", key + below, file.read_bytes())
        return f"s3://{BUCKET}/{key}"

    def requests(self) -> list[str]:
        """The requests that readers made so far: method and path of each."""
        return re.findall(r'"(?:\x1b\[[0-9;]*m)*((?:GET|HEAD|POST|DELETE) [^ ]+)', self._log.read_text())

    def kill(self) -> None:
        """End it without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(processes.PATIENCE_S)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """A server, until the end of the block."""
    log = folder / "moto.log"
    with (
        log.open("w") as file,
        processes.started(
            [sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, stderr=file, text=True, env={**os.environ, **KEYS}
        ) as process,
    ):
        assert process.stdout is not None
        port = next(line for line in process.stdout if line.startswith("port "))
        yield S3(process, int(port.split()[1]), log)


class WebServer:
    """A web server of one folder. ``before`` may answer a request itself, with a status, before it is served."""

    def __init__(self, folder: Path, *, knows_ranges: bool = True) -> None:
        self.folder, self.knows_ranges = folder, knows_ranges
        self.before: Callable[[str, str], int | None] = lambda _method, _path: None
        self.paths: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WebServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(server: WebServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._serve(with_body=False)

        def do_GET(self) -> None:
            self._serve(with_body=True)

        def _serve(self, *, with_body: bool) -> None:
            server.paths.append(self.path)
            status = server.before(self.command, self.path)
            file = server.folder / unquote(urlsplit(self.path).path).strip("/")
            if status is None and not file.exists():
                status = 404
            if status is not None:
                self._answer(status, "text/plain", b"", with_body=with_body)
            elif file.is_dir():
                links = "".join(f'<a href="{name}">{name}</a>' for name in sorted(one.name for one in file.iterdir()))
                base = self.path.split("?")[0].rstrip("/")
                page = links.replace('href="', f'href="{base}/')
                self._answer(
                    200, "text/html", f'<html>{page}<a href="http://elsewhere/x.npy">x</a>'.encode(), with_body
                )
            else:
                self._send_file(file.read_bytes(), with_body=with_body)

        def _send_file(self, data: bytes, *, with_body: bool) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted is None or not server.knows_ranges:
                self._answer(200, "application/octet-stream", data, with_body)
                return
            start, end = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
            self._answer(206, "application/octet-stream", data[start : end + 1], with_body, (start, end, len(data)))

        def _answer(
            self, status: int, kind: str, data: bytes, with_body: bool, part: tuple[int, int, int] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if server.knows_ranges:
                self.send_header("Accept-Ranges", "bytes")
            if part is not None:
                self.send_header("Content-Range", f"bytes {part[0]}-{part[1]}/{part[2]}")
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    return Handler
