"""Tokens: what is kept of them, whose they are, and that files are changed whole or not at all."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from adlro.api.tokens import LOOK_AGAIN_S, KeptToken, TokenFile, find_who, hash_of, new_token
from adlro.core.accounts import Owners
from adlro.core.errors import StoreError, UsageError
from adlro.live.service import Who


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "state" / "tokens.json")


def test_a_token_has_256_random_bits_and_is_never_the_same() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(token.startswith("adlro_") and len(token) == len("adlro_") + 43 for token in made)


def test_the_token_itself_is_nowhere_in_the_file(tokens: TokenFile) -> None:
    token = tokens.add("ann", "user")
    text = tokens.path.read_text()
    assert token not in text
    assert token.removeprefix("adlro_") not in text
    assert json.loads(text)["tokens"][0]["hash"] == hash_of(token)


def test_a_token_says_who_asks(tokens: TokenFile) -> None:
    token = tokens.add("ann", "user")
    tokens.add("root", "operator")
    assert find_who(tokens.read(), token) == Who("ann", "user")
    for wrong in ("", "adlro_", token[:-1], token + "x", token.upper(), hash_of(token), "é\udcff"):
        assert find_who(tokens.read(), wrong) is None


def test_all_tokens_are_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [KeptToken(str(n), "user", hash_of(str(n)), 0.0) for n in range(5)]
    compared: list[str] = []

    def compare(one: str, other: str) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert find_who(kept, "0") == Who("0", "user")
    assert len(compared) == 5


def test_the_file_is_for_its_owner_only_and_is_refused_when_others_may_read_it(tokens: TokenFile) -> None:
    tokens.add("ann", "user")
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700
    tokens.path.chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        tokens.read()


@pytest.mark.parametrize(
    ("uid", "mode", "is_read"),
    [(0, 0o440, True), (0, 0o400, True), (0, 0o444, False), (0, 0o460, False), (1000, 0o440, False)],
)
def test_a_secret_of_kubernetes_which_is_roots_may_be_read_by_our_group(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, is_read: bool
) -> None:
    tokens.add("ann", "user")
    real = Path.stat

    def as_in_a_pod(path: Path, **more: bool) -> os.stat_result:
        found = list(real(path, **more))
        found[stat.ST_MODE], found[stat.ST_UID] = stat.S_IFREG | mode, uid
        return os.stat_result(found)

    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", as_in_a_pod)
        if is_read:
            assert [one.name for one in tokens.read()] == ["ann"]
        else:
            with pytest.raises(StoreError, match="chmod 600"):
                tokens.read()


def test_a_name_has_one_token(tokens: TokenFile) -> None:
    tokens.add("ann", "user")
    with pytest.raises(UsageError, match="adlro token remove ann"):
        tokens.add("ann", "operator")
    tokens.remove("ann")
    tokens.add("ann", "operator")
    assert [(token.name, token.role) for token in tokens.read()] == [("ann", "operator")]


def test_a_name_that_has_no_token_cannot_be_removed_and_the_one_meant_is_named(tokens: TokenFile) -> None:
    tokens.add("ann", "user")
    with pytest.raises(UsageError, match="Did you mean 'ann'"):
        tokens.remove("an")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "x" * 65, "<b>", "../x"])
def test_a_name_that_no_user_can_have_is_refused(tokens: TokenFile, name: str) -> None:
    with pytest.raises(UsageError, match="is not a user name"):
        tokens.add(name, "user")


@pytest.mark.parametrize("name", ["0", "00", "1000", "-0", "٠", "0.0"])
@pytest.mark.parametrize("role", ["viewer", "user", "operator"])
def test_a_number_is_no_name_for_a_token_of_any_role(tokens: TokenFile, name: str, role: str) -> None:
    with pytest.raises(UsageError, match="is not a user name"):
        tokens.add(name, role)
    assert tokens.read() == ()


def test_a_system_account_gets_no_token_of_a_user_even_where_names_are_labels(tokens: TokenFile) -> None:
    for name in ("root", "nobody"):
        with pytest.raises(UsageError, match="jobs may not run as"):
            tokens.add(name, "user")
    tokens.add("root", "operator")
    tokens.add("nobody", "viewer")


def test_where_jobs_run_as_their_users_a_token_needs_an_account(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", owners=Owners(are_accounts=True))
    with pytest.raises(UsageError, match="no account 'no-such-login'"):
        tokens.add("no-such-login", "user")
    tokens.add("grafana", "viewer")
    assert [token.name for token in tokens.read()] == ["grafana"]


def test_a_role_that_does_not_exist_is_refused(tokens: TokenFile) -> None:
    with pytest.raises(UsageError, match="Did you mean 'operator'"):
        tokens.add("ann", "operater")


def test_a_file_that_holds_something_else_is_told(tokens: TokenFile) -> None:
    tokens.path.parent.mkdir()
    for text in ("{", "[]", '{"tokens": [{"name": "a"}]}', '{"tokens": 1}'):
        tokens.path.write_text(text)
        tokens.path.chmod(0o600)
        with pytest.raises(StoreError, match="not a token file"):
            tokens.read()


def test_tokens_added_at_once_by_many_are_all_kept(tokens: TokenFile) -> None:
    threads = [threading.Thread(target=tokens.add, args=(f"u{n}", "user")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [token.name for token in tokens.read()] == [f"u{n}" for n in range(8)]


def test_a_change_counts_after_a_second_and_the_file_is_not_read_for_every_request(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    asked = TokenFile(tokens.path, clock=lambda: now[0])
    assert asked() == ()
    tokens.add("ann", "user")
    assert asked() == ()
    now[0] += LOOK_AGAIN_S
    assert [token.name for token in asked()] == ["ann"]
    monkeypatch.setattr(TokenFile, "read", lambda self: pytest.fail("it did not change"))
    now[0] += LOOK_AGAIN_S
    assert [token.name for token in asked()] == ["ann"]


def test_a_removed_file_lets_nobody_in(tokens: TokenFile) -> None:
    now = [0.0]
    asked = TokenFile(tokens.path, clock=lambda: now[0])
    tokens.add("ann", "user")
    assert asked()
    tokens.path.unlink()
    now[0] += LOOK_AGAIN_S
    assert asked() == ()
