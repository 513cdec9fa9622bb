"""Buckets of Google Cloud Storage."""

from tritone.storage.objects.page import ObjectScheme

SCHEME = ObjectScheme(
    name="gs",
    place="bucket",
    order=20,
    credentials="GOOGLE_APPLICATION_CREDENTIALS (a file), or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    triton="gs",
)
