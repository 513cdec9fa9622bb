"""Containers of Azure Blob Storage."""

from collections.abc import Mapping

from tritone.errors import InputError
from tritone.storage.address import Address
from tritone.storage.objects.page import ObjectScheme


def _triton_place(address: Address, environment: Mapping[str, str]) -> str:
    account = environment.get("AZURE_STORAGE_ACCOUNT") or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise InputError(f"{address}: AZURE_STORAGE_ACCOUNT must name the account for Triton's own client")
    return f"{account}/{address.place}"


SCHEME = ObjectScheme(
    name="az",
    place="container",
    order=30,
    credentials="AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    triton="as",
    triton_place=_triton_place,
)
