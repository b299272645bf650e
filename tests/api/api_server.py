"""The API around a made-up cluster: in this process for quick questions, and on a port of its own."""

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
from fastapi import FastAPI
from tests.api.fake_service import FakeService

from adlro.api.app import make_app
from adlro.api.server import make_server
from adlro.api.settings import ApiSettings
from adlro.api.tokens import KeptToken, hash_of
from adlro.live.service import Service

TOKENS: Final = tuple(
    KeptToken(name, role, hash_of(f"adlro_{name}"), 0.0)
    for name, role in (("ann", "user"), ("bob", "user"), ("eve", "viewer"), ("root", "operator"))
)
"""Whose token is adlro_ and the name."""


@dataclass(frozen=True, slots=True)
class Client:
    """Asks an application in this process, without a port."""

    app: FastAPI
    headers: Mapping[str, str]

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=self.headers
            ) as client:
                return await client.request(method, path, **given)

        return asyncio.run(ask())

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PUT", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)


def client_for(
    service: Service, name: str = "", settings: ApiSettings | None = None, metrics: bytes | None = None
) -> Client:
    """Ask the API without a port, with the token of this name; "": everyone is an operator."""
    settings = settings or ApiSettings(auth="tokens" if name else "off")
    app = make_app(service, settings, metrics=(lambda: metrics) if metrics else None, tokens=lambda: TOKENS)
    headers = {"Authorization": f"Bearer adlro_{name}"} if name else {}
    return Client(app, headers)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Place:
    """A server that runs."""

    port: int
    app: Any
    context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        if self.context:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, path: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, name: str = ""
    ) -> Answer:
        """Ask once; a body that is no bytes goes as JSON."""
        sent = dict(headers or {})
        if name:
            sent["Authorization"] = f"Bearer adlro_{name}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def serving(
    service: Service | None = None, settings: ApiSettings | None = None, context: ssl.SSLContext | None = None
) -> Iterator[Place]:
    """The API on a free port of this machine, ended with the block."""
    settings = settings or ApiSettings(port=0, auth="off")
    app = make_app(service or FakeService(), settings, metrics=lambda: b"up 1\n", tokens=lambda: TOKENS)
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < until, "the server did not start in time"
            time.sleep(0.01)
        yield Place(server.servers[0].sockets[0].getsockname()[1], app, context)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server did not end"
