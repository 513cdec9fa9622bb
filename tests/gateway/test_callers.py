"""Who may ask, and how much: the file of keys, OpenID tokens, limits."""

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tritone.gateway import accounts, callers
from tritone.gateway.accounts import Account, CallerLimits
from tritone.gateway.callers import Callers, hash_of, new_key
from tritone.gateway.refusal import GatewayRefusal

ISSUER, AUDIENCE = "https://id.example", "speech"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (accounts, callers):
        monkeypatch.setattr(module, "time", found)
    return found


def admitted(callers: Callers, query: dict[str, str] | None = None, **headers: str) -> Account:
    return asyncio.run(callers.account({name.replace("_", "-"): each for name, each in headers.items()}, query or {}))


def refused(callers: Callers, query: dict[str, str] | None = None, **headers: str) -> GatewayRefusal:
    with pytest.raises(GatewayRefusal) as caught:
        admitted(callers, query, **headers)
    return caught.value


def test_without_a_file_everybody_may_ask_whatever_key_it_shows() -> None:
    assert admitted(Callers()).name == "anybody"
    assert admitted(Callers(), authorization="Bearer anything").name == "anybody"


def test_a_key_is_known_by_its_hash_wherever_clients_put_it(tmp_path: Path) -> None:
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n  - {{name: desk, sha256: {digest}, streams: 2}}\n", encoding="utf-8")
    known = Callers(file)
    shown: list[dict[str, str]] = [
        {"authorization": f"Bearer {key}"},
        {"x_api_key": key},
        {"sec_websocket_protocol": f"realtime, openai-insecure-api-key.{key}"},
    ]
    assert [admitted(known, **each).name for each in shown] == ["desk"] * 3
    assert admitted(known, {"key": key}).limits == CallerLimits(streams=2)
    assert key not in file.read_text(encoding="utf-8")
    assert (refused(known).status, refused(known, x_api_key="other").status) == (401, 401)
    assert "key is needed" in str(refused(known))


def test_anybody_may_have_limits_of_its_own_beside_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: desk, sha256: {hash_of('k')}}}]\nanybody: {{streams: 1}}\n", encoding="utf-8")
    known = Callers(file)
    assert admitted(known).limits.streams == 1
    assert admitted(known, x_api_key="k").limits.streams == math.inf
    assert refused(known, x_api_key="wrong").status == 401


def test_a_file_that_changed_is_read_again_and_one_that_is_broken_is_not_used(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: a, sha256: {hash_of('a')}}}]\n", encoding="utf-8")
    known = Callers(file)
    assert refused(known, x_api_key="b").status == 401
    file.write_text(
        f"keys: [{{name: a, sha256: {hash_of('a')}}}, {{name: b, sha256: {hash_of('b')}}}]\n", encoding="utf-8"
    )
    clock.now += 10
    assert admitted(known, x_api_key="b").name == "b"
    file.write_text("keys: [{name: a}]", encoding="utf-8")
    clock.now += 10
    assert admitted(known, x_api_key="b").name == "b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [{name: a, sha256: 123}]", "64 hexadecimal digits"),
        ("keys: [{sha256: 123}]", "key 1 has no name"),
        ("keys: [{{name: a, sha256: {}, stream: 1}}]".format(hash_of("a")), "has stream, which is not known"),
        ("keys: [{{name: a, sha256: {}, streams: many}}]".format(hash_of("a")), "streams must be a number"),
        ("keys: [{{name: a, sha256: {}}}, {{name: b, sha256: {}}}]".format(hash_of("a"), hash_of("a")), "is that of a"),
        ("openid: {issuer: i, audience: a}", "openid has no jwks"),
        ("openid: {issuer: i, audience: a, jwks: 'http://elsewhere/keys'}", "https:// alone"),
        ("!!python/object:os.system {}", "is not valid YAML: could not determine a constructor"),
        ("- a", "must be a mapping"),
    ],
)
def test_a_file_of_keys_says_what_is_wrong_with_it(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Callers(file)


def test_a_file_of_keys_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    with pytest.raises(
        ValueError, match=r"cannot be read: No such file or directory\. `tritone gateway --new-key NAME`"
    ):
        Callers(file)


def test_a_file_of_keys_that_everybody_may_write_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: desk, sha256: {hash_of('k')}}}]", encoding="utf-8")
    file.chmod(0o644)  # hashes are no secret
    Callers(file)
    assert str(file) not in caplog.text
    file.chmod(0o666)
    Callers(file)
    assert f"everybody on this machine may write {file}, and let themselves in: chmod o-w {file}" in caplog.text


def test_requests_audio_and_streams_are_limited_by_caller(clock: Clock) -> None:
    account = Account("a", CallerLimits(streams=1, requests_per_minute=2, audio_s_per_hour=60))
    account.request()
    account.request()
    with pytest.raises(GatewayRefusal, match="2 requests a minute") as caught:
        account.request()
    assert (caught.value.status, caught.value.retry_after_s) == (429, pytest.approx(30))
    clock.now += 30
    account.request()

    account.count_audio(100)  # a single recording may be longer than the limit
    with pytest.raises(GatewayRefusal, match="60 s of audio an hour") as caught:
        account.count_audio(1)
    assert caught.value.retry_after_s == pytest.approx(41 * 60, abs=61)

    with account.streaming():
        with pytest.raises(GatewayRefusal, match="1 live streams at once"), account.streaming():
            pass
        assert account.open_streams == 1
    assert account.open_streams == 0


@pytest.fixture
def signer(tmp_path: Path) -> Any:
    """Signs claims by a key whose public half is in the file of the issuer's keys, beside the file that names it."""
    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())) | {"kid": "one", "alg": "ES256"}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public]}), encoding="utf-8")
    (tmp_path / "keys.yaml").write_text(
        f"openid: {{issuer: '{ISSUER}', audience: {AUDIENCE}, jwks: jwks.json, requests_per_minute: 3}}\n",
        encoding="utf-8",
    )

    def sign(kid: str = "one", **claims: Any) -> str:
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 60}
        return jwt.encode(usual | claims, private, algorithm="ES256", headers={"kid": kid})

    return sign


def test_a_token_of_the_issuer_tells_who_asks(signer: Any, tmp_path: Path) -> None:
    known = Callers(tmp_path / "keys.yaml")
    found = admitted(known, authorization=f"Bearer {signer()}")
    assert (found.name, found.limits.requests_per_minute) == ("anna", 3)
    assert admitted(known, authorization=f"Bearer {signer()}") is found


def test_tokens_that_are_not_for_us_or_not_valid_are_refused(signer: Any, tmp_path: Path) -> None:
    known = Callers(tmp_path / "keys.yaml")
    whole = signer()
    unsigned = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 60}, None, "none")
    shared = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 60}, "x" * 32, headers={"kid": "one"}
    )
    wrong = [
        signer(exp=time.time() - 3600),
        signer(aud="other"),
        signer(iss="https://evil.example"),
        signer(sub=7),
        signer(kid="two"),
        whole[:-4] + "AAAA",
        unsigned,
        shared,
        "a.b.c",
    ]
    assert [refused(known, authorization=f"Bearer {token}").status for token in wrong] == [401] * len(wrong)
    assert refused(known, authorization="Bearer plain").status == 401
