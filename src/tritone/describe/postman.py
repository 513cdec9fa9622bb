"""Sample requests as a Postman collection (format 2.1), each with a test that the answer is a good one."""

from collections.abc import Sequence
from typing import Any

from tritone.describe.samples import SampleRequest

SCHEMA = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
HOST = "baseUrl"  # the variable
NOTE = (
    "Larger bodies are files in the folder {} beside this collection. newman finds them with --working-dir FOLDER, the "
    "folder of this file; Postman in its working directory. Without them a server answers 400."
)
CHECKS = {
    True: [
        "pm.test('status 200', () => pm.response.to.have.status(200));",
        "pm.test('has outputs', () => pm.expect(pm.response.json().outputs).to.not.be.empty);",
    ],
    False: ["pm.test('status 200', () => pm.response.to.have.status(200));"],
}


def postman(requests: Sequence[SampleRequest], server: str, title: str, folder: str) -> dict[str, Any]:
    """The collection; binary and large bodies are files in `folder`, relative to where Postman looks for files."""
    models = dict.fromkeys(each.model for each in requests)
    health = _item("ready", "GET", "/v2/health/ready", {}, None, CHECKS[False])
    return {
        "info": {"name": title, "schema": SCHEMA, "description": NOTE.format(folder)},
        "variable": [{"key": HOST, "value": server}],
        "item": [
            health,
            *(
                {"name": model, "item": [_infer(each, folder) for each in requests if each.model == model]}
                for model in models
            ),
        ],
    }


def _infer(request: SampleRequest, folder: str) -> dict[str, Any]:
    if request.is_inline:
        body = {"mode": "raw", "raw": request.body.decode(), "options": {"raw": {"language": "json"}}}
    else:
        body = {"mode": "file", "file": {"src": f"{folder}/{request.file}"}}
    answers_json = request.is_json and request.name != "answers"
    return _item(request.name, "POST", request.path, request.headers, body, CHECKS[answers_json])


def _item(
    name: str, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None, checks: Sequence[str]
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "method": method,
        "header": [{"key": key, "value": value} for key, value in headers.items()],
        "url": {"raw": f"{{{{{HOST}}}}}{path}", "host": [f"{{{{{HOST}}}}}"], "path": path.strip("/").split("/")},
    }
    if body is not None:
        request["body"] = body
    script = {"type": "text/javascript", "exec": list(checks)}
    return {"name": name, "request": request, "event": [{"listen": "test", "script": script}]}
