"""The page's files and addresses, asked without a browser; test_page_in_chromium.py has one."""

import json
import re
import socket
from pathlib import Path
from typing import get_args

import httpx2
import pytest
import soundfile

from toy import SAMPLE_RATE, toy_waveform
from tritone.demo.page import serve_page
from tritone.errors import ServerSetupError
from tritone.gateway import GatewayOptions
from tritone.gateway.protocols.page import addresses as page
from tritone.gateway.protocols.page.options import PageOptions
from tritone.gateway.server import GatewayServer
from tritone.search.options import SearchMode
from tritone.server import TritonServer

FILES = sorted(each.name for each in Path(str(page.FOLDER)).iterdir())
ELSEWHERE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")


@pytest.fixture(scope="module")
def ask(gateway: GatewayServer):
    with httpx2.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as client:
        yield client


@pytest.fixture
def recording(tmp_path: Path) -> bytes:
    soundfile.write(tmp_path / "said.wav", toy_waveform("hello world"), SAMPLE_RATE, subtype="PCM_16")
    return (tmp_path / "said.wav").read_bytes()


def options(**fields: object) -> dict[str, str]:
    return {"options": json.dumps(fields)}


def test_the_page_offers_every_search():
    listed = (Path(str(page.FOLDER)) / "index.html").read_text(encoding="utf-8").partition('id="search"')[2]
    offered = re.findall(r'<option value="([\w-]+)"', listed.partition("</select>")[0])
    assert sorted(offered) == sorted(get_args(SearchMode))


def test_the_page_may_load_its_own_files_and_nothing_else(ask):
    answer = ask.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    for name in FILES:
        found = ask.get(f"/page/{name}")
        assert (found.status_code, found.headers["content-security-policy"]) == (200, policy)
        assert set(ELSEWHERE.findall(found.text)) <= {"http://www.w3.org"}  # the name of SVG


def test_the_package_has_the_files_of_the_page():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"gateway/protocols/page/files/*"' in re.search(r"^tritone = \[.*\]$", text, re.MULTILINE)[0]


def test_a_file_that_did_not_change_is_not_sent_again(ask):
    tag = ask.get("/page/page.js").headers["etag"]
    again = ask.get("/page/page.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_a_gateway_may_have_no_page(triton: TritonServer):
    with GatewayServer(
        GatewayOptions(triton=triton.grpc_address, port=0, protocols={"page": PageOptions(page=False)})
    ).background() as running:
        address = f"http://127.0.0.1:{running.port}"
        assert [httpx2.get(address + path).status_code for path in ("/", "/page/models")] == [404, 404]


@pytest.mark.parametrize("name", ["other.js", "..%2fapp.py", "%2e%2e/__init__.py", "page.js%00.css"])
def test_no_other_file_is_found(ask, name: str):
    answer = ask.get(f"/page/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_models_to_choose_from_have_a_kind(ask):
    found = ask.get("/page/models").json()
    kinds = {each["name"]: each["kind"] for each in found["models"]}
    assert (kinds["toy"], kinds["live"]) == ("offline", "streaming")


def test_models_to_choose_from_tell_their_searches_where_they_are_known(ask):
    searches = {each["name"]: each["searches"] for each in ask.get("/page/models").json()["models"]}
    assert searches["toy"] == ["greedy", "prefix-beam"]  # a CTC model without an attention decoder
    assert searches["talk"] == []  # a model of strangers that takes no parameters


def test_a_recording_comes_back_in_parts(ask, recording: bytes):
    answer = ask.post("/page/transcribe", params=options(model="toy", words=True), content=recording)
    parts = [json.loads(line) for line in answer.text.splitlines()]
    assert " ".join(part["text"] for part in parts) == "hello world"
    assert [word["text"] for part in parts for word in part["words"]] == ["hello", "world"]


def test_each_channel_of_a_recording_may_be_a_speaker(ask, recording: bytes):
    asked = {**options(model="toy", speakers=True), "channels": "each"}
    (part,) = [
        json.loads(line) for line in ask.post("/page/transcribe", params=asked, content=recording).text.splitlines()
    ]
    assert {word["speaker"] for word in part["words"]} == {"channel1"}


@pytest.mark.parametrize(
    ("asked", "content", "status", "message"),
    [
        (options(model="toy"), b"no sound", 415, "the file is not audio"),
        (options(model="none"), b"", 404, "none"),
        (options(modle="toy"), b"", 400, "modle"),
        ({"options": "["}, b"", 400, "JSON object"),
        ({**options(model="toy"), "channels": "left"}, b"", 400, "channels is mixed or each"),
    ],
)
def test_what_cannot_be_transcribed_is_refused(ask, asked, content: bytes, status: int, message: str):
    answer = ask.post("/page/transcribe", params=asked, content=content)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert "/tmp" not in answer.text


def test_captions_are_made_of_a_transcript(ask):
    words = [
        {"text": "hello", "start_s": 1.5, "end_s": 2.0, "confidence": 0.9},
        {"text": "world", "start_s": 2.0, "end_s": 2.5, "confidence": 0.9},
    ]
    body = json.dumps({"text": "hello world", "words": words, "audio_s": 3.0})
    assert "00:00:01,500 --> 00:00:02,500\nhello world" in ask.post("/page/written/srt", content=body).text
    assert ask.post("/page/written/vtt", content=body).text.startswith("WEBVTT\n")


@pytest.mark.parametrize("body", ["", "[]", "null", '{"text": 1, "words": [3]}', '{"words": []}', "[" * 100_000])
def test_what_is_no_transcript_has_no_captions(ask, body: str):
    answer = ask.post("/page/written/srt", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert ask.post("/page/written/exe", content=body).status_code == 404


def test_the_page_of_the_demo_needs_its_port_before_anything_is_started() -> None:
    stages: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ServerSetupError, match="Choose another with --port"),
        serve_page(["demo-asr"], stages.append, port=other.getsockname()[1]),
    ):
        pass
    assert stages == []
