"""The lab on this machine: the standard library's server, loopback only, same origin only."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from qll.errors import InputError, QllError, RunError
from qll.reports.lab import LabRequest, evaluate, report_error
from qll.reports.lab_page import served_page

if TYPE_CHECKING:
    from qll.reports.lab_network import NetworkLab

HOST = "127.0.0.1"
MOST_BYTES = 1 << 17
_SECONDS = 30  # that a client may take for its request
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LabServer(ThreadingHTTPServer):
    """``serve_forever`` until Ctrl-C; ``address`` is what to open."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0, network: NetworkLab | None = None) -> None:
        """With a ``network`` the page is about that and its data points."""
        self.network = network
        self.page = (served_page() if network is None else network.page()).encode()
        self.computing = threading.Lock()  # one picture at a time: torch uses all cores
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"port {port} cannot be used",
                where=HOST,
                expected="a free port from 1024 to 65535, or 0 for any",
                found=getattr(error, "strerror", None) or str(error),
                fix="choose another with --port",
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LabServer
    timeout = _SECONDS
    server_version = "qll"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_ours():
            return
        if urlsplit(self.path).path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page)
        else:
            self._refuse(404, "there is no such page")

    def do_POST(self) -> None:
        if not self._is_ours():
            return
        if urlsplit(self.path).path != self._question:
            self._refuse(404, "there is no such page")
        elif self.headers.get_content_type() != "application/json":
            # A form of another site can send other types without asking; this one it cannot.
            self._refuse(415, "send application/json")
        else:
            self._evaluate()

    def _evaluate(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self._refuse(413, f"send at most {MOST_BYTES} bytes")
            return
        body = self.rfile.read(int(length))
        try:
            with self.server.computing:
                reply = self._answer(_parsed(body))
            self._send_json(200, reply)
        except QllError as error:
            self._send_json(422, {"error": report_error(error)})
        except RecursionError:
            self._refuse(422, "the formula is nested too deeply")

    @property
    def _question(self) -> str:
        return "/evaluate" if self.server.network is None else "/examine"

    def _answer(self, values: Any) -> dict[str, Any]:
        if self.server.network is None:
            return evaluate(LabRequest.from_json(values))
        from qll.reports.lab_network import NetworkRequest

        return self.server.network.examine(NetworkRequest.from_json(values))

    def _is_ours(self) -> bool:
        """Host and origin must be this server: no other site, and no name that was pointed here."""
        port = self.server.server_address[1]
        names = {f"{HOST}:{port}", f"localhost:{port}"}
        if self.headers.get("Host", "") not in names:
            self._refuse(403, "this address is not served")
            return False
        origin = self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        foreign = origin is not None and origin not in {f"http://{name}" for name in names}
        if foreign or site not in ("same-origin", "none"):
            self._refuse(403, "requests from other sites are refused")
            return False
        return True

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True
        self._send_json(status, {"refused": reason})

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is the user's."""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InputError(
            "the request is not JSON", expected="JSON", found=str(error), fix="reload the page"
        ) from error
