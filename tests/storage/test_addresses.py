"""Addresses of folders in storage, and names that listings may not have."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tritone.errors import InputError, StorageError
from tritone.storage import Address, Entry, parse
from tritone.storage.entry import checked


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/a/b", Address("s3", "bucket", "a/b")),
        ("S3://bucket/", Address("s3", "bucket")),
        (Path("gs://bucket/a"), Address("gs", "bucket", "a")),  # pathlib makes gs:/ of it
        ("az://container/a", Address("az", "container", "a")),
        ("hf://anna/asr", Address("hf", "anna/asr", "", "main")),
        ("hf://anna/asr@v1.2/small", Address("hf", "anna/asr", "small", "v1.2")),
        ("models/asr", None),
        ("/models/s3:x", None),
        ("ftp://host/a", None),
        ("demo-asr", None),
    ],
)
def test_an_address_is_read(text: str | Path, address: Address | None):
    assert parse(text) == address
    if address is not None:
        assert parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["s3://", "s3://key:secret@bucket/a", "s3://bucket/../other", "s3://bucket/a//b", "hf://anna", "hf://a/b@"]
)
def test_an_address_that_names_nothing_is_refused(text: str):
    with pytest.raises(InputError):
        parse(text)


@pytest.mark.parametrize(
    "name",
    ["../a", "a/../../b", "/etc/passwd", "a//b", "", "a\\..\\b", "a\0b", "a\nb", "a/" + "b" * 256, "c/" * 600 + "d"],
)
def test_a_name_in_a_listing_that_is_no_file_below_the_folder_is_refused(name: str):
    with pytest.raises(StorageError, match="cannot be used"):
        checked([Entry(name=name, size=1)], "s3://bucket")


def test_a_listing_must_fit_on_a_disk():
    with pytest.raises(StorageError, match="'a/b' is a file and a folder at once"):
        checked([Entry(name="a/b", size=1), Entry(name="a/b/c", size=1)], "s3://bucket")
    with pytest.raises(StorageError, match="listed twice"):
        checked([Entry(name="a", size=1), Entry(name="a", size=2)], "s3://bucket")
    with pytest.raises(StorageError, match="more than 50000 files"):
        checked((Entry(name=str(index), size=1) for index in range(10**9)), "s3://bucket")
    now = datetime.now(UTC)
    assert checked([Entry(name="a/", size=0, modified=now), Entry(name="a/b", size=1)], "x")[0].name == "a/b"
