"""A real PostgreSQL server in a folder of its own, reached over a unix socket."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.parts import program, required


def server_program(name: str) -> str:
    """A program of the server; Debian keeps it outside of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else program(name)


def needs_psycopg() -> None:
    """Skip where the extra `postgres` is not installed, or fail where nothing may be missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        if required():
            pytest.fail("psycopg is not installed: pip install 'adlro[postgres]'.")
        pytest.skip("psycopg is not installed: pip install 'adlro[postgres]'.")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server; the address of its database. It refuses to run as root, so root runs it as somebody else."""
    needs_psycopg()
    initdb, postgres = server_program("initdb"), server_program("postgres")
    # Not pytest's own folder: others may not enter it, and paths of unix sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="adlro-pg-"))
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": folder}
        data = folder / "data"
        subprocess.run(
            [initdb, "-D", str(data), "-U", "adlro", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True, timeout=60, **quiet, **as_user,
        )  # type: ignore[call-overload]  # fmt: skip
        server = subprocess.Popen(
            [postgres, "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"],
            **quiet, **as_user,
        )  # type: ignore[call-overload]  # fmt: skip
        try:
            wait_for(folder)
            yield f"postgresql://adlro@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # SIGTERM would wait until everybody has left
            server.communicate(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(folder: Path) -> None:
    """Wait until the server lets one in."""
    import time

    import psycopg

    for _ in range(200):
        try:
            psycopg.connect(f"postgresql://adlro@/postgres?host={folder}").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    pytest.fail("PostgreSQL did not come up.")


def new_database(url: str) -> str:
    """The address of a database of its own on that server."""
    import psycopg

    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    return url.replace("/postgres?", f"/{name}?")


def cut_all(url: str) -> None:
    """Cut every connection to the server but our own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
