"""What a site may set about the API. Light to import: the daemon's config reads into it."""

import ipaddress
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from adlro.core.accounts import ANYBODY, Owners
from adlro.core.errors import ConfigError
from adlro.core.toml import Schema

PORT: Final = 8321


class ApiTable(Schema):
    """[api]: where people and programs ask."""

    is_on: bool = Field(default=True, description="Whether to run the API and the dashboard.")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address to listen on; one that other machines can reach needs TLS.",
    )
    port: int = Field(default=PORT, ge=0, le=65_535, description="The port; 0: any free one.")
    auth: Literal["tokens", "off"] = Field(
        default="tokens",
        description="Who has access: people with a token (tokens), or everybody on this machine, as an operator (off).",
    )
    tokens: str = Field(default="", description='The token file of `adlro token`; "": tokens.json beside the store.')
    min_uid: int = Field(
        default=0,
        ge=0,
        description="The lowest uid that a job may run as; 0: UID_MIN of /etc/login.defs. Root is always refused.",
    )
    hosts: list[str] = Field(default=[], description="Further host names of the API.")
    tls_cert: str = Field(default="", description="The TLS certificate, a PEM file.")
    tls_key: str = Field(default="", description="The key of the certificate, a PEM file.")
    plain_http: bool = Field(
        default=False, description="Allow other machines without TLS, because a proxy in front of the API has TLS."
    )
    others: Literal["hidden", "shown"] = Field(
        default="hidden", description="Whether people who are not operators see the names and users of others' jobs."
    )
    rate_per_s: float = Field(
        default=100.0, gt=0, description="Requests per second that one token or address may make."
    )
    burst: float = Field(default=200.0, ge=1, description="Requests that one token or address may make at once.")
    largest_body: int = Field(
        default=262_144, ge=1024, le=67_108_864, description="Maximum size of the body of a request, in bytes."
    )
    body_s: float = Field(default=10.0, gt=0, description="Seconds within which the body of a request must arrive.")
    most_streams: int = Field(default=100, ge=1, le=10_000, description="Maximum number of open event streams.")
    head_s: float = Field(
        default=10.0, gt=0, le=600, description="Seconds within which the headers of a request must arrive."
    )
    idle_s: float = Field(
        default=20.0, gt=0, le=3600, description="Seconds after which a connection without a request is closed."
    )
    most_connections: int = Field(default=1000, ge=10, le=1_000_000, description="Maximum number of open connections.")
    most_per_address: int = Field(
        default=250,
        ge=1,
        le=1_000_000,
        description="Maximum number of connections from one address; raise it behind a proxy.",
    )


class ApiSettings(ApiTable):
    """[api] with what the rest of the config adds, and what no site has to set."""

    token_file: Path | None = None  # where `tokens` says, or beside the store
    owners: Owners = ANYBODY  # whose jobs are taken
    heartbeat_s: float = 15.0
    stream_s: float = 3600.0  # a stream ends after so long, and its listener comes back

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
        return bool(self.tls_cert)

    def _check_tls(self) -> None:
        """Raise ConfigError unless the certificate and its key can be used."""
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the API's TLS: {self.tls_cert} and {self.tls_key} cannot be used: {error}. Expected a certificate "
                "and its key in PEM, without a password, that this user can read."
            ) from None

    def check(self, has_tokens: bool) -> None:
        """Raise ConfigError for what would let in whom it should not, or cannot work."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("[api] has only one of tls_cert and tls_key; expected both, or neither.")
        for path in (self.tls_cert, self.tls_key):
            if path and not Path(path).is_file():
                raise ConfigError(f"the API's TLS: {path} does not exist; expected a PEM file.")
        if self.tls_cert:
            self._check_tls()
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
                f"the API has host {self.host!r} and no TLS: tokens would be sent unencrypted. Set tls_cert and "
                "tls_key, or plain_http = true if a proxy in front of it has TLS."
            )
