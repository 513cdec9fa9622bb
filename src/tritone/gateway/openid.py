"""OpenID tokens: is one that a client shows signed by the issuer, for us, and valid now?

await tokens.name(token)  ->  who it is
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import jwt

from tritone.errors import OperatorError
from tritone.gateway.refusal import GatewayRefusal
from tritone.net.fetch import fetch

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a private key. Those by a shared secret are not for keys that everybody may read."""

FETCH_S = 10.0
MAX_KEYS_BYTES = 1 << 20
LEAST_BETWEEN_S = 60.0  # fetches for a key that is not known: anybody can name one
MAX_AGE_S = 3600.0
LEEWAY_S = 30.0  # between the clocks of two machines
MAX_NAME = 128


@dataclass(frozen=True, kw_only=True)
class OpenId:
    """Whose tokens are taken. `jwks`: a file or an https:// address of the issuer's keys; `name`: the claim with the
    caller's name."""

    issuer: str
    audience: str
    jwks: str
    name: str = "sub"

    def __post_init__(self) -> None:
        for each in ("issuer", "audience", "jwks", "name"):
            if not isinstance(getattr(self, each), str) or not getattr(self, each):
                raise ValueError(f"openid: {each} must be text, got {getattr(self, each)!r}")
        address = urlsplit(self.jwks)
        if address.scheme == "http" and address.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(f"openid: jwks is {self.jwks}; keys are fetched by https:// alone")


class Tokens:
    """The issuer's keys, and the tokens that they have signed."""

    def __init__(self, openid: OpenId) -> None:
        self._openid = openid
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._fetched = -MAX_AGE_S
        self._fetching = asyncio.Lock()

    async def name(self, token: str) -> str:
        """The name in a token.

        Raises:
            GatewayRefusal: it is not valid.
            OperatorError: the issuer's keys cannot be read.
        """
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = await self._key(kid)
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._openid.audience,
                issuer=self._openid.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise GatewayRefusal(401, f"the token is not valid: {str(error)[:200]}") from error
        found = claims.get(self._openid.name)
        if not isinstance(found, str) or not 0 < len(found) <= MAX_NAME:
            message = f"the token has no name: its claim {self._openid.name} must be text of 1 to {MAX_NAME} characters"
            raise GatewayRefusal(401, message)
        return found

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        age_s = time.monotonic() - self._fetched
        if age_s > MAX_AGE_S or (kid not in self._keys and age_s > LEAST_BETWEEN_S):
            async with self._fetching:
                if time.monotonic() - self._fetched >= age_s:  # nobody else has done it meanwhile
                    await self._fetch()
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if kid not in self._keys:
            raise GatewayRefusal(401, "the token is signed by a key that its issuer does not have (any more)")
        return self._keys[kid]

    async def _fetch(self) -> None:
        try:
            text = await asyncio.to_thread(_read, self._openid.jwks)
            found = jwt.PyJWKSet.from_dict(json.loads(text))
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if self._keys:  # the old ones are better than none
                self._fetched = time.monotonic() - MAX_AGE_S + LEAST_BETWEEN_S
                return
            raise OperatorError(
                f"the keys of OpenID tokens cannot be read from {self._openid.jwks}: {error}"
            ) from error
        self._keys = {each.key_id: each for each in found.keys}
        self._fetched = time.monotonic()


def _read(where: str) -> bytes:
    if not where.startswith(("https://", "http://")):
        return Path(where).read_bytes()
    answer = fetch(where, timeout_s=FETCH_S, max_bytes=MAX_KEYS_BYTES, in_web=True)
    if answer.status != 200:
        raise OSError(f"the answer is {answer.status}")
    return answer.body
