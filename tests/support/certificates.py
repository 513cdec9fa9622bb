"""Certificates for tests of TLS, which hold for an hour's work and for names of this machine."""

import datetime
from pathlib import Path

import trustme


def write_certificates(folder: Path) -> Path:
    """Write PEM files into a folder.

    `ca.pem` and `other.pem` are authorities. The first signed "good" (of localhost), "foreign", "expired" and "me", the
    second "stranger": NAME.pem and NAME.key. `secret.key` has a passphrase.
    """
    ours, other = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(folder / "ca.pem"))
    other.cert_pem.write_to_path(str(folder / "other.pem"))
    for name, certificate in (
        ("good", ours.issue_cert("localhost", "127.0.0.1")),
        ("foreign", ours.issue_cert("elsewhere.example")),
        ("expired", ours.issue_cert("localhost", not_after=datetime.datetime(2020, 1, 1))),
        ("me", ours.issue_cert("me@example.org")),
        ("stranger", other.issue_cert("me@example.org")),
    ):
        certificate.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        (folder / f"{name}.pem").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    (folder / "secret.key").write_text(ENCRYPTED, encoding="utf-8")
    return folder


# openssl genpkey -algorithm ed25519 -aes256 -pass pass:secret; opens nothing
ENCRYPTED = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiU7CQ+2clCTAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEPmJAkitPDYhoK8n1XvbcbEEQHU6
A6DC6Ike3bHLJWC1krJinwczBSl0fu1CQoSP8z92rI55XILz7rngmz8lOq1mNdQJ
+O8Em4kI96R+lyEPFhg=
-----END ENCRYPTED PRIVATE KEY-----
"""
