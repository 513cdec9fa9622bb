"""A folder of descriptions: openapi.json, postman.json, curl.sh and the bodies that they send."""

import json
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tritone.describe.models import DescribedModel
from tritone.describe.openapi import openapi
from tritone.describe.postman import postman
from tritone.describe.samples import SampleRequest, samples
from tritone.errors import OperatorError
from tritone.paths import explained, local

OPENAPI, POSTMAN, CURL, BODIES = "openapi.json", "postman.json", "curl.sh", "bodies"
CURL_HEAD = """#!/bin/sh
# Sends one sample of each kind to each model: sh {file} [URL]
set -e
cd "$(dirname "$0")"
URL="${{1:-{server}}}"
"""


def write_descriptions(
    models: Sequence[DescribedModel], output: str | Path, *, server: str, title: str = "Models on Triton"
) -> list[Path]:
    """Write the descriptions of models into a folder, over what an earlier call wrote there.

    Args:
        server: where the models are served, such as http://localhost:8000.

    Returns:
        The files.

    Raises:
        OperatorError: a file cannot be written.
        InputError: `output` is not on this machine.
    """
    output = local(output)
    server = server.rstrip("/")
    requests = [request for model in models for request in samples(model)]
    files = {
        OPENAPI: _json(openapi(models, requests, server, title, BODIES)),
        POSTMAN: _json(postman(requests, server, title, BODIES)),
        CURL: curl(requests, server).encode(),
    } | {f"{BODIES}/{each.file}": each.body for each in requests}
    try:
        (output / BODIES).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write(output / name, content)
    except OSError as error:
        raise explained(error, f"cannot write {output}") from error
    return [output / name for name in files]


def curl(requests: Sequence[SampleRequest], server: str) -> str:
    """A script for the shell with a line of curl for each request."""
    lines = [CURL_HEAD.format(file=CURL, server=server)]
    for each in requests:
        headers = " ".join(f"-H {shlex.quote(f'{key}: {value}')}" for key, value in each.headers.items())
        body = shlex.quote(f"@{BODIES}/{each.file}")
        kept = f" -o {shlex.quote(f'{each.file}.answer')}" if each.has_binary_answer else ""
        lines.append(
            f"echo; echo {shlex.quote(f'# {each.model}, {each.name}')}\n"
            f'curl -sS --fail-with-body {headers} --data-binary {body}{kept} "$URL"{shlex.quote(each.path)}\n'
        )
    return "".join([*lines, "echo\n"])


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OperatorError(f"{path} is in the way: it is not a file. Remove it, or choose another folder.")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tritone-", delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
