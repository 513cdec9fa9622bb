"""Buckets of Amazon S3, and of servers that speak its protocol."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from tritone.storage.address import Address
from tritone.storage.objects.page import ObjectScheme

PORTS = {"http": 80, "https": 443}


def _endpoint(environment: Mapping[str, str]) -> str:
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def _options(environment: Mapping[str, str]) -> Mapping[str, str]:
    endpoint = _endpoint(environment)
    # The checksum is sent with every object and checked by the server.
    return {"aws_checksum_algorithm": "SHA256"} | ({"aws_endpoint": endpoint} if endpoint else {})


def _triton_place(address: Address, environment: Mapping[str, str]) -> str:
    if not (endpoint := _endpoint(environment)):
        return address.place
    parts = urlsplit(endpoint)
    port = parts.port or PORTS.get(parts.scheme, 443)
    return f"{parts.scheme}://{parts.hostname}:{port}/{address.place}"


SCHEME = ObjectScheme(
    name="s3",
    place="bucket",
    order=10,
    credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket), "
    "AWS_REGION, and AWS_ENDPOINT_URL for other servers than Amazon's",
    options=_options,
    triton="s3",
    triton_place=_triton_place,
)
