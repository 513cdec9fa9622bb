"""TLS of both protocols, made of the same files."""

import ssl
from typing import Any

import grpc

from tritone.proxy.options import Tls


def server_context(tls: Tls | None) -> ssl.SSLContext | None:
    """For HTTP. With `client_ca` clients must show a certificate."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.client_ca)
    return context


def server_credentials(tls: Tls) -> Any:
    """For gRPC, the same."""
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=None if tls.client_ca is None else tls.client_ca.read_bytes(),
        require_client_auth=tls.client_ca is not None,
    )
