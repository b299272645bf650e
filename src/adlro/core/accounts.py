"""Who a job may run as: the one definition of a user name and of an account, for tokens, requests and submissions.

A name is never a number: programs such as `sbatch --uid` read "0" and "00" as uid 0. Code that starts a process for a
user calls `account_of` once and uses the uid and gids of that record, so that the name is not looked up twice.
"""

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adlro.core.errors import AccountError

NAME_PATTERN: Final = r"([A-Za-z]|[0-9_][0-9_.@-]*[A-Za-z])[A-Za-z0-9_.@-]*"
"""Letters, digits and . _ @ -, with at least one letter. The first character is a letter, a digit or _."""

LONGEST_NAME: Final = 64
NAME_RULE: Final = f"a login name: 1 to {LONGEST_NAME} letters, digits and . _ @ -, at least one of them a letter"

LOGIN_DEFS: Final = Path("/etc/login.defs")
FIRST_UID: Final = 1000
LAST_UID: Final = 60_000
NO_ACCOUNT: Final = 65_535
"""Uids from UID_MAX + 1 to this one are for services, for nobody (65534), or invalid (65535 is -1 in 16 bits)."""

HIGHEST_UID: Final = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine, read from one record of its user database."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a login sets for this account."""
        return {"HOME": self.home, "LOGNAME": self.name, "SHELL": self.shell, "USER": self.name}


def is_name(text: str) -> bool:
    """Whether a text can be a user name."""
    return len(text) <= LONGEST_NAME and re.fullmatch(NAME_PATTERN, text) is not None


def checked_name(text: str) -> str:
    """Return the text if it can be a user name; raise AccountError otherwise."""
    if not is_name(text):
        raise AccountError(f"{text!r} is not a user name; expected {NAME_RULE}.")
    return text


def account_of(name: str, min_uid: int = 0) -> Account:
    """The account with this name, if jobs may run as it. `min_uid` 0 means UID_MIN of /etc/login.defs.

    Raises AccountError if the text is not a user name, if it is unknown or an alias, and for system accounts.
    """
    checked_name(name)
    try:
        record = pwd.getpwnam(name)
        groups = os.getgrouplist(record.pw_name, record.pw_gid)
    except KeyError:
        raise AccountError(f"there is no account {name!r} on this machine; jobs run as their user.") from None
    except OSError as error:
        raise AccountError(f"the groups of {name!r} cannot be read: {error.strerror}.") from None
    if record.pw_name != name:
        raise AccountError(f"{name!r} is another name of the account {record.pw_name!r}; use that one.")
    if refusal := why_not(record.pw_uid, min_uid):
        raise AccountError(f"jobs may not run as {name!r}: {refusal}.")
    return Account(name, record.pw_uid, record.pw_gid, tuple(dict.fromkeys(groups)), record.pw_dir, record.pw_shell)


def why_not(uid: int, min_uid: int = 0) -> str:
    """Why jobs may not run as this uid; "" if they may. Root is always refused, whatever the minimum is."""
    first, last = login_range()
    lowest = max(min_uid or first, 1)
    if not lowest <= uid <= HIGHEST_UID:
        return f"its uid is {uid}; expected {lowest} or more (UID_MIN of {LOGIN_DEFS}, or min_uid of [api])"
    if last < uid <= NO_ACCOUNT:
        return f"its uid is {uid}; those from {last + 1} to {NO_ACCOUNT} belong to services (UID_MAX of {LOGIN_DEFS})"
    return ""


def login_range(path: Path = LOGIN_DEFS) -> tuple[int, int]:
    """The lowest and the highest uid that this machine gives to people."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = {name: int(value) for name, value in re.findall(r"^\s*(UID_MIN|UID_MAX)\s+([0-9]{1,9})\s*$", text, re.M)}
    return max(found.get("UID_MIN", FIRST_UID), 1), found.get("UID_MAX", LAST_UID)


def is_known(name: str) -> bool:
    """Whether this machine has an account with this name."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def own_account_name() -> str:
    """The name of the account that this process runs as, or its uid if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose jobs a daemon accepts, and as which account they run."""

    are_accounts: bool = False
    """True: jobs run as their user's account. False: a user name is only a label, and no job runs as that user here."""
    min_uid: int = 0
    """The lowest uid that jobs may run as; 0 means UID_MIN of /etc/login.defs."""
    only: str = ""
    """The only user whose jobs are accepted, because all jobs run as that user's account; "" accepts everybody."""

    def account(self, name: str) -> Account | None:
        """The account that a job of this user runs as, or None if names are labels. Raises AccountError if refused."""
        checked_name(name)
        if self.are_accounts:
            return account_of(name, self.min_uid)
        if self.only and name != self.only:
            raise AccountError(
                f"jobs run as {self.only!r} here, and {name!r} would get that account. Run the daemon as root, so that "
                "each job runs as its own user, or set shared_account = true in [local]."
            )
        return None


ANYBODY: Final = Owners()
"""Accepts everybody; every name is only a label."""
