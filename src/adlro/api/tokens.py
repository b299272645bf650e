"""Who may ask the API: names with a role, and the hash of a token of each. The token itself is kept nowhere.

A token has 256 random bits, so nobody can try them all: one SHA-256 at rest is enough. A slow hash (scrypt) is for
passwords that people make up; here it would only let anybody keep the daemon busy.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, final, get_args

from adlro.core import accounts
from adlro.core.accounts import ANYBODY, Owners, account_of, is_known
from adlro.core.errors import AccountError, StoreError, UsageError
from adlro.core.toml import nearest
from adlro.live.service import Who

Role = Literal["viewer", "user", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Each may do what the ones before it may."""

PREFIX: Final = "adlro_"
"""So that a token is recognised where it should not be: in a log, in a repository."""

LOOK_AGAIN_S: Final = 1.0
"""A token that is added or removed counts after so long at the latest."""


class Token(Protocol):
    """A token as it is kept."""

    @property
    def name(self) -> str:
        """Whose it is: the user of the jobs."""

    @property
    def role(self) -> str:
        """What its owner may do."""

    @property
    def hash(self) -> str:
        """`hash_of` the token."""

    @property
    def made_s(self) -> float:
        """When it was made, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class KeptToken:
    """A token in a file."""

    name: str
    role: str
    hash: str
    made_s: float


Tokens = Callable[[], Sequence[Token]]
"""All tokens that count now; asked for every request, so it must be quick."""


def new_token() -> str:
    """A token that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def find_who(tokens: Sequence[Token], token: str) -> Who | None:
    """Whose token it is. Looks at all of them in any case, so that the time taken tells nothing."""
    asked = hash_of(token)
    found: Who | None = None
    for known in tokens:
        if hmac.compare_digest(known.hash, asked):
            found = Who(known.name, known.role)
    return found


def checked_token_name(name: str, role: str, owners: Owners) -> str:
    """The name, if a token of this role may have it. Raises UsageError.

    A user's name must be one that jobs may have, and never that of a system account, even where it is only a label: the
    same file may serve another back end tomorrow. Viewers submit no jobs and operators may name the user of a job, so
    their own names need only be names.
    """
    try:
        accounts.checked_name(name)
        if role == "user" and owners.account(name) is None and is_known(name):
            account_of(name, owners.min_uid)
    except AccountError as error:
        raise UsageError(f"no token for {name!r}: {error}") from None
    return name


def checked_role(role: str) -> str:
    """The role, if there is one of that name."""
    if role not in ROLES:
        raise UsageError(f"--role is {role!r}; expected viewer, user or operator.{nearest(role, ROLES)}")
    return role


def _forbidden_bits(file: os.stat_result) -> int:
    """The rights that a token file must not give.

    Kubernetes lets a pod read a Secret by its group only: the file is root's, and root put us into that group.
    """
    return 0o037 if file.st_uid == 0 != os.geteuid() else 0o077


@final
class TokenFile:
    """Tokens in a JSON file that only its owner may read. Every change is whole or not at all."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, owners: Owners = ANYBODY) -> None:
        self.path = path
        self._owners = owners
        self._clock = clock
        self._looked_s = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[KeptToken, ...] = ()

    def __call__(self) -> Sequence[KeptToken]:
        """The tokens, read again when the file has changed."""
        now = self._clock()
        if now - self._looked_s >= LOOK_AGAIN_S:
            stamp = self._stamp_of_file()
            if stamp != self._stamp:
                self._tokens, self._stamp = self.read(), stamp
            self._looked_s = now
        return self._tokens

    def read(self) -> tuple[KeptToken, ...]:
        """The tokens in the file, by name; none if there is no file."""
        try:
            found_file = self.path.stat()
            entries = json.loads(self.path.read_text(encoding="utf-8"))["tokens"]
            found = tuple(KeptToken(**entry) for entry in entries)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StoreError(f"{self.path}: the tokens cannot be read: {error.strerror}.") from None
        except (ValueError, TypeError, KeyError):
            raise StoreError(
                f"{self.path}: this is not a token file. Move it away, and make new tokens with `adlro token add`."
            ) from None
        if (mode := found_file.st_mode) & _forbidden_bits(found_file):
            raise StoreError(f"{self.path}: other users can read it (mode {mode & 0o777:o}). Run `chmod 600` on it.")
        return found

    def add(self, name: str, role: str) -> str:
        """Make a token for a name; it is shown this once. Raises UsageError if it may not have one, or has one."""
        checked_token_name(name, checked_role(role), self._owners)
        with self._alone():
            kept = self.read()
            if any(one.name == name for one in kept):
                raise UsageError(f"{name} has a token. Remove it first: `adlro token remove {name}`.")
            token = new_token()
            self._write(sorted([*kept, KeptToken(name, role, hash_of(token), time.time())], key=lambda one: one.name))
        return token

    def remove(self, name: str) -> None:
        """Forget the token of a name. Raises UsageError if it has none."""
        with self._alone():
            kept = self.read()
            names = [one.name for one in kept]
            if name not in names:
                raise UsageError(f"{name!r} has no token.{nearest(name, names)} `adlro token list` lists them.")
            self._write([one for one in kept if one.name != name])

    def _write(self, tokens: Sequence[KeptToken]) -> None:
        """Replace the file."""
        new = self.path.with_name(f"{self.path.name}.new")
        text = json.dumps({"tokens": [asdict(token) for token in tokens]}, indent=2) + "\n"
        try:
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        except OSError as error:
            raise StoreError(f"{self.path}: the tokens cannot be written: {error.strerror}.") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, over all processes."""
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"{lock}: the tokens cannot be locked: {error.strerror}.") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _stamp_of_file(self) -> tuple[int, int, int] | None:
        """What changes when the file does."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_mode
