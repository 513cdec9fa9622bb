"""TLS of both protocols, made of the same files, which are read again when the server's certificate changes.

certificates = Certificates(tls)           raises if the files are unfit
certificates.context, .credentials()   ->  for HTTP, for gRPC
certificates.look()                    ->  connections from now on have the certificate that is in the files now
"""

import logging
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from tritone.net.limits import Tls

LOG = logging.getLogger(__name__)
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# Of X.509 (RFC 5280): context-specific tag of the version, and the two forms of a time.
VERSION, UTC_TIME, GENERALIZED_TIME = 0xA0, 0x17, 0x18
BEFORE_VALIDITY = 3  # serial number, algorithm, issuer


class Certificates:
    """The certificate of the server, for both protocols.

    Who signs the certificates of clients is read once. Files that changed and cannot be used, such as a certificate
    whose key was not written yet, change nothing; they are tried again when they change again.
    """

    def __init__(self, tls: Tls) -> None:
        """Raises OSError (an `ssl.SSLError` is one) or ValueError if the files are unfit."""
        self._tls = tls
        self._client_ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.client_ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(tls.client_ca)
        self._seen = self._stamps()
        self._pair = (b"", b"")
        self.expires = 0.0  # seconds since 1970
        self._load()

    def credentials(self) -> Any:
        """For gRPC, which asks for each new connection whether there is another certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, require_client_authentication=self._client_ca is not None
        )

    def look(self) -> None:
        """Read the files again if they changed."""
        if (stamps := self._stamps()) == self._seen:
            return
        self._seen = stamps
        try:
            self._load()
        except (OSError, ValueError) as error:
            LOG.warning("the new certificate in %s cannot be used, the old one stays: %s", self._tls.certificate, error)
        else:
            until = datetime.fromtimestamp(self.expires, UTC)
            LOG.warning("the certificate in %s is used from now on, until %s", self._tls.certificate, f"{until:%F %T}Z")

    def _load(self) -> None:
        chain, key = self._tls.certificate.read_bytes(), self._tls.key.read_bytes()
        expires = expiry(chain)
        # Tried apart first, for a context that refuses a key has the new certificate already. Without a password a key
        # that needs one is refused, where OpenSSL would ask for it at the terminal.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            context.load_cert_chain(self._tls.certificate, self._tls.key, password="")
        self._pair, self.expires = (key, chain), expires

    def _configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([self._pair], root_certificates=self._client_ca)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._tls.certificate, self._tls.key))


def expiry(chain: bytes) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970.

    Raises:
        ValueError: there is none.

    Source: RFC 5280, section 4.1. Python's ssl module tells it of certificates of peers alone.
    """
    found = CERTIFICATE.search(chain)
    if found is None:
        raise ValueError("it has no certificate in PEM format")
    try:
        (certificate,) = _elements(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")))
        fields = _elements(_elements(certificate[1])[0][1])
        fields = fields[1:] if fields[0][0] == VERSION else fields
        tag, text = _elements(fields[BEFORE_VALIDITY][1])[1]
        form = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[tag]
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (IndexError, KeyError, ValueError) as error:
        raise ValueError(f"its certificate cannot be read ({error})") from error


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The tags and contents of elements in DER, one behind the other."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("it is cut off")
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
