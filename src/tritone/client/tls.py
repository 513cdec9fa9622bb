"""The files of TLS: authorities to trust, and the certificate by which a client says who it is.

TlsFiles(ca="ca.pem")                                           a server whose certificate that authority signed
TlsFiles(certificate="me.pem", private_key="me.key")            mutual TLS; the system's authorities
"""

import os
import ssl
from dataclasses import dataclass, fields
from pathlib import Path

# Where systems keep the authorities that they trust, all in one file.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; None of `ca` means the authorities that the system trusts, of the other two that there is none."""

    ca: str | None = None
    certificate: str | None = None  # with those of authorities between, if there are any
    private_key: str | None = None  # without a passphrase

    @property
    def given(self) -> list[str]:
        """The names of the files that are given."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def check(self) -> None:
        """Raise `ValueError` if a file is missing or unfit; what it says about a key is no secret."""
        for name in self.given:
            path = Path(getattr(self, name))
            try:
                path.open("rb").close()
            except OSError as error:
                raise ValueError(f"{name}: {path} cannot be read ({error.strerror}); name a PEM file") from error
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key go together; give both, or none")
        self.context()

    def context(self) -> ssl.SSLContext:
        """What Python's TLS needs; raises `ValueError` if a file is unfit."""
        try:
            context = ssl.create_default_context(cafile=self.ca or _authorities())
        except ssl.SSLError as error:
            raise ValueError(
                f"ca: {self.ca} has no certificate in PEM form; one begins with -----BEGIN CERT"
            ) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.private_key, _refuse_passphrase)
            except ssl.SSLError as error:
                reason = "do not belong together" if "MISMATCH" in str(error) else "are not a certificate and a key"
                raise ValueError(
                    f"certificate {self.certificate} and private_key {self.private_key} {reason} in PEM form "
                    f"({error.reason or error})"
                ) from error
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """What gRPC needs: the content of authorities, private key and certificate, each None if there is none."""
        # gRPC has authorities of its own, which are not the system's; where the environment names others, it knows.
        named = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in os.environ
        ca = self.ca or (None if named else _authorities())
        files = (ca, self.private_key, self.certificate)
        return tuple(None if file is None else Path(file).read_bytes() for file in files)  # type: ignore[return-value]


def _authorities() -> str | None:
    """The file of the authorities that the system trusts, or None if it is not where we look."""
    candidates = (ssl.get_default_verify_paths().cafile, *BUNDLES)
    return next((file for file in candidates if file is not None and Path(file).is_file()), None)


def _refuse_passphrase() -> str:
    raise ValueError(
        "the private key has a passphrase; write it without one: openssl pkey -in KEY -out PLAIN, readable by you alone"
    )
