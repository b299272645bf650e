"""What a site may set about the API. Light to import: the daemon's config reads into it."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from adlro.core.accounts import ANYBODY, Owners
from adlro.core.errors import ConfigError

PORT: Final = 8321


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Where the API answers, whom, and how much at a time."""

    host: str = "127.0.0.1"
    port: int = PORT
    auth: Literal["tokens", "off"] = (
        "tokens"  # off: whoever reaches the port is an operator; on a loopback address only
    )
    tokens: Path | None = None  # the file of `adlro token`
    hosts: tuple[str, ...] = ()  # further names under which it is reached; localhost and addresses always are
    tls_cert: Path | None = None
    tls_key: Path | None = None
    plain_http: bool = False  # without TLS on an address that others reach: something in front of it has TLS
    others: Literal["hidden", "shown"] = "hidden"  # names and users of others' jobs, to those who are no operator
    rate_per_s: float = 100.0  # requests that a token (an address, without one) may make …
    burst: float = 200.0  # … and how many at once
    largest_body: int = 262_144  # bytes
    body_s: float = 10.0  # within which the body of a request must be there
    most_streams: int = 100  # listeners to events at a time
    heartbeat_s: float = 15.0
    stream_s: float = 3600.0  # a stream ends after so long, and its listener comes back
    head_s: float = 10.0  # within which TLS and the head of a request must be there
    idle_s: float = 20.0  # a connection without a request is closed after so long
    most_connections: int = 1000  # at a time, from everywhere …
    most_per_address: int = 250  # … and from one address
    owners: Owners = ANYBODY  # whose jobs are taken

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def has_tls(self) -> bool:
        """Whether it speaks TLS itself."""
        return self.tls_cert is not None

    def _check_tls(self) -> None:
        """Raise ConfigError unless the certificate and its key can be used."""
        import ssl

        assert self.tls_cert is not None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the API's TLS: {self.tls_cert} and {self.tls_key} cannot be used: {error}. Expected a certificate "
                "and its key in PEM, without a password, that this user can read."
            ) from None

    def check(self, has_tokens: bool) -> None:
        """Raise ConfigError for what would let in whom it should not, or cannot work."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("the API has one of tls_cert and tls_key; expected both, or none.")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"the API's TLS: {path} is no file; expected one in PEM.")
        if self.tls_cert is not None:
            self._check_tls()
        if self.rate_per_s <= 0 or self.burst < 1:
            raise ConfigError(
                f"the API's rate is {self.rate_per_s}/s, burst {self.burst}; expected above 0, and from 1."
            )
        if self.is_loopback:
            return
        if self.auth == "off":
            raise ConfigError(
                f'the API has auth = "off" and host {self.host!r}: everyone who reaches it would be an operator. '
                "Use 127.0.0.1, or tokens."
            )
        if not has_tokens:
            raise ConfigError(
                f"the API has host {self.host!r} and no tokens. Make one with `adlro token add NAME --role operator`, "
                "or use 127.0.0.1."
            )
        if not self.has_tls and not self.plain_http:
            raise ConfigError(
                f"the API has host {self.host!r} and no TLS: tokens would travel in the clear. Set tls_cert and "
                "tls_key; or plain_http = true, where something in front of it has TLS."
            )
