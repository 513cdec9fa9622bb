"""The page of `tritone demo --page` in a real Chromium: microphone, files, keyboard, screen readers, errors."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from serving import kill_tree
from tritone.audio.files import read_audio, resample
from tritone.cli.shared.tiny_en import find_tiny_en
from tritone.corpus.clips import SHIPPED_SENTENCES, Clip, read_clips
from tritone.demo.score import word_errors

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-all fetches it")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH (Debian: apt-get install chromium)"),
    # Its sockets are of the driver's process, and closed with it.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CLIP = read_clips()[0]
SENTENCES = [read_clips(SHIPPED_SENTENCES)[number] for number in (0, 4)]
CLIP_S = 3.5  # with silence around
ATTEMPTS = 4
TIMEOUT_MS = 60_000
START = "Start microphone"
STOP = "Stop microphone"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with page_of(["demo-asr"]) as found:
        yield found


@contextmanager
def page_of(bundles: Sequence[str]) -> Iterator[str]:
    """The address of the page with bundles, or with all; the command must end well when it is interrupted."""
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "demo", "--page", "--port", "0"]
    command += [part for each in bundles for part in ("--model", each)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, encoding="utf-8", env=os.environ | {"PYTHONUNBUFFERED": "1"}, **pipes) as process:
        try:
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"http://localhost:\d+/", line):
                    break
            assert found, lines
            yield found[0]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
            assert process.returncode == 0
        finally:
            kill_tree(process)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the microphone hears: the clip, once, with some silence around."""
    samples, rate = soundfile.read(CLIP.path)
    path = tmp_path_factory.mktemp("said") / "said.wav"
    soundfile.write(path, np.pad(samples, (rate // 4, rate)), rate)
    return path


def hearing(path: Path) -> list[str]:
    """The arguments of a Chromium whose microphone hears a file, once."""
    return [
        "--no-sandbox",  # which root cannot have
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}%noloop",
    ]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with sync_api.sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def chromium(driver: Any, said: Path) -> Iterator[Any]:
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=hearing(said))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    """The page, ready. It must have asked nobody else, and have no errors."""
    wrong: list[str] = []
    with chromium.new_context(accept_downloads=True) as context:
        context.set_default_timeout(TIMEOUT_MS)
        context.on("request", lambda request: wrong.append(request.url) if foreign(request.url, address) else None)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        context.on(
            "console",
            lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None,
        )
        opened = context.new_page()
        opened.on("websocket", lambda socket: wrong.append(socket.url) if foreign(socket.url, address) else None)
        # Long before it is needed: a chooser that is asked for later may not be intercepted in time.
        opened.on("filechooser", lambda chooser: chooser.set_files(CLIP.path))
        opened.goto(address)
        sync_api.expect(opened.locator("#health")).to_have_text("Connected", timeout=TIMEOUT_MS)
        yield opened
    assert wrong == []


def foreign(url: str, address: str) -> bool:
    host = address.split("//")[1]
    return url.split("://")[0] in ("http", "https", "ws", "wss") and not url.split("://")[1].startswith(host)


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def text_of(page: Any) -> str:
    return " ".join(page.locator("#segments .words").all_text_contents())


def wait_for(page: Any, selector: str, text: str) -> None:
    sync_api.expect(page.locator(selector)).to_contain_text(text, timeout=TIMEOUT_MS)


def open_file(page: Any, path: Path) -> None:
    page.locator("#file").set_input_files(path)
    wait_for(page, "#status", "Done")


def seconds(page: Any) -> float:
    return page.evaluate("document.getElementById('audio').currentTime")


def likeness(sent: bytes, rate: int) -> float:
    """How far the audio that was sent is the clip: the largest normalised correlation, 1 for the same."""
    heard = resample(np.frombuffer(sent, np.int16), rate, 16000)
    clip, _ = soundfile.read(CLIP.path)
    spectrum = np.fft.rfft(heard, 2**18) * np.conj(np.fft.rfft(clip, 2**18))
    best = np.fft.irfft(spectrum)[: heard.size].max()
    return float(best / (np.linalg.norm(clip) * np.linalg.norm(heard)))


def test_the_microphones_text_is_what_was_said(page: Any):
    sent: list[bytes | str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    for _ in range(ATTEMPTS):
        sent.clear()
        button(page, START).click()
        sync_api.expect(button(page, STOP)).to_be_enabled(timeout=TIMEOUT_MS)
        page.wait_for_timeout(1000 * CLIP_S)
        button(page, STOP).click()
        wait_for(page, "#status", "Done")
        rate = json.loads(sent[0])["sample_rate"]
        # Chromium drops audio where the machine is too slow for it.
        if intact := likeness(b"".join(each for each in sent if isinstance(each, bytes)), rate) > 0.95:
            break
    if not intact:
        pytest.skip("this machine is too busy for sound in real time: Chromium's fake microphone lost some of it")
    assert text_of(page) == CLIP.reference
    assert re.fullmatch(r"\d+ ms", page.locator("#first-partial").inner_text())
    assert re.fullmatch(r"\d+ ms", page.locator("#final-text").inner_text())
    # What was heard can be played.
    button(page, "Play").click()
    sync_api.expect(page.locator("#now")).not_to_have_text("0:00.0", timeout=TIMEOUT_MS)
    button(page, "Pause").click()
    assert page.evaluate("document.getElementById('audio').duration") > 2
    # Screen readers hear the final text.
    assert page.locator("[aria-live=polite]").inner_text().strip() == CLIP.reference


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What another microphone hears: two sentences of ordinary English, with pauses."""
    parts = [np.zeros(8000)]
    for clip in SENTENCES:
        parts += [read_audio(clip.path, 16000), np.zeros(24000)]
    path = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    soundfile.write(path, np.concatenate(parts), 16000)
    return path


def test_whisper_writes_sentences_while_they_are_said(
    driver: Any, spoken: Path, monkeypatch: pytest.MonkeyPatch, tiny_en_cache: Path
):
    if (missing := find_tiny_en().missing) or find_spec("silero_vad") is None:
        pytest.skip(f"Whisper tiny.en or silero-vad is not here ({missing}); make test-all fetches them")
    monkeypatch.setenv("TRITONE_CACHE", str(tiny_en_cache))
    with page_of([]) as address:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=hearing(spoken))
        opened = browser.new_page()
        opened.set_default_timeout(TIMEOUT_MS)
        opened.goto(address)
        sync_api.expect(opened.locator("#health")).to_have_text("Connected", timeout=TIMEOUT_MS)
        assert opened.locator("#file-model").input_value() == "whisper-tiny-en"
        assert opened.locator("#live-model").input_value() == "whisper-tiny-en-streaming"
        sync_api.expect(opened.locator("#small-models")).to_be_hidden()
        button(opened, START).click()
        for count, clip in enumerate(SENTENCES, 1):  # while the microphone is on
            sync_api.expect(opened.locator("#segments li")).to_have_count(count, timeout=TIMEOUT_MS)
            text = opened.locator("#segments li .words").nth(count - 1).inner_text()
            # Chromium drops audio where the machine is too slow.
            assert score(clip, text.replace("(less sure)", "")) >= 0.7, text
        button(opened, STOP).click()
        wait_for(opened, "#status", "Done")
        begins = [float(each.get_attribute("data-start")) for each in opened.locator("#segments .at").all()]
        assert begins[0] < 2 < begins[1]
        opened.locator("#live-model").select_option("demo-asr-streaming")
        sync_api.expect(opened.locator("#small-models")).to_contain_text("not ordinary English")
        browser.close()


def score(clip: Clip, text: str) -> float:
    """The share of words that are right."""
    return 1 - word_errors(clip, text).rate


def test_a_file_is_transcribed_by_keyboard_alone(page: Any):
    order = []
    for _ in range(3):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert order == ["Skip to the transcript", START, "Open a file"]
    page.keyboard.press("Enter")
    wait_for(page, "#status", "Done")
    assert text_of(page) == CLIP.reference
    page.keyboard.press("Tab")
    words = CLIP.reference.split()
    slider = page.get_by_role("slider", name="Position in the recording")
    sync_api.expect(slider).to_be_focused()
    heard = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        heard.append(slider.get_attribute("aria-valuetext").split(", ")[1])
    start = words[: len(heard)] if heard[0] == words[0] else words[1 : len(heard) + 1]
    assert heard == [*start[:3], start[1]]
    sync_api.expect(page.locator(".word.now")).to_have_text(start[1])
    page.keyboard.press("Home")
    assert seconds(page) == 0
    page.keyboard.press("Tab")
    sync_api.expect(button(page, "Play")).to_be_focused()


def test_searches_that_no_chosen_model_has_are_not_offered(page: Any):
    offered = page.locator("#search option:not([hidden])").all_text_contents()
    assert offered == ["as the model is served", "greedy", "prefix beam", "rescoring"]
    page.locator("#search").select_option("prefix-beam")
    with page.expect_request(lambda request: "transcribe" in request.url) as asked:
        open_file(page, CLIP.path)
    assert "prefix-beam" in asked.value.url
    assert text_of(page).replace(" (less sure)", "") == CLIP.reference


def test_of_several_files_that_are_dropped_the_first_is_sent_and_the_others_are_told(page: Any):
    page.evaluate(
        """(content) => {
          const dropped = new DataTransfer();
          for (const name of ["first.flac", "second.flac"]) {
            dropped.items.add(new File([Uint8Array.from(content)], name));
          }
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true }));
        }""",
        list(CLIP.path.read_bytes()),
    )
    wait_for(page, "#problem-text", "One file at a time: this is first.flac, the others were not sent.")
    wait_for(page, "#status", "Done")
    assert text_of(page) == CLIP.reference


def test_a_click_on_a_word_plays_from_there_and_texts_are_saved(page: Any):
    open_file(page, CLIP.path)
    page.evaluate("void (document.getElementById('audio').play = () => {})")  # stays where it is
    word = page.locator("#segments .word").nth(3)
    word.click()
    assert abs(seconds(page) - float(word.get_attribute("data-start"))) < 0.01
    saved = {}
    for name in ("Text", "SRT", "VTT", "JSON"):
        with page.expect_download() as download:
            button(page, name).click()
        assert download.value.suggested_filename.startswith("clip-01.")
        saved[name] = Path(download.value.path()).read_text(encoding="utf-8")
    assert saved["Text"] == CLIP.reference + "\n"
    assert CLIP.reference in saved["SRT"]
    assert saved["VTT"].startswith("WEBVTT")
    assert [word["text"] for word in json.loads(saved["JSON"])["words"]] == CLIP.reference.split()


def test_two_channels_are_two_speakers_whose_overlap_is_marked(page: Any, tmp_path: Path):
    first, second = (read_audio(clip.path, 16000) for clip in read_clips()[:2])
    late = 16000  # the second begins while the first talks
    call = np.zeros((max(len(first), late + len(second)), 2), np.float32)
    call[: len(first), 0], call[late : late + len(second), 1] = first, second
    soundfile.write(tmp_path / "call.wav", call, 16000)
    page.get_by_label("each channel is a speaker").check()
    open_file(page, tmp_path / "call.wav")
    wait_for(page, "#segments", "while channel1 speaks")
    rows = page.locator("#segments li[data-overlap]").all_inner_texts()
    names = [re.findall(r"channel[12]", row) for row in rows]
    assert ["channel1", "channel2"] in names
    assert ["channel2", "channel1"] in names
    starts = page.locator("#segments li .at").evaluate_all("all => all.map((each) => Number(each.dataset.start))")
    assert starts == sorted(starts)
    for number, clip in ((1, read_clips()[0]), (2, read_clips()[1])):
        rows = page.locator("#segments li", has=page.locator(".speaker", has_text=f"channel{number}"))
        said = " ".join(rows.locator(".words").all_inner_texts())
        assert re.sub(r" \((less sure|doubtful)\)", "", said) == clip.reference
    with page.expect_download() as saved:
        page.get_by_role("button", name="VTT").click()
    assert "<v channel2>" in Path(saved.value.path()).read_text(encoding="utf-8")


def test_texts_are_never_markup(page: Any):
    line = {
        "text": "<img src=x onerror=alert(1)> b",
        "words": [{"text": "<img", "start_s": 0, "end_s": 1, "confidence": 0.3, "speaker": "<b>anna</b>"}],
    }
    page.route("**/page/transcribe*", lambda route: route.fulfill(body=json.dumps(line) + "\n"))
    open_file(page, CLIP.path)
    assert text_of(page).startswith("<img (doubtful) src=x onerror")
    assert page.locator(".speaker").inner_text() == "<b>anna</b>"
    assert page.locator("#segments img, #segments b").count() == 0


def test_a_text_that_grows_says_who_speaks(page: Any):
    words = [{"text": text, "speaker": who} for text, who in (("one", "anna"), ("two", "anna"), ("<b>", "ben"))]
    shown = page.evaluate(
        """async (words) => {
            const { TranscriptView } = await import("./page/transcript.js");
            const made = ["ol", "p", "p", "p", "p"].map((name) => document.createElement(name));
            const [list, partial, turn, nothing, announcer] = made;
            const view = new TranscriptView({ list, partial, turn, nothing, announcer, onPlay: () => {} });
            const inks = [];
            for (const settled of [0, 5]) {
                view.partial("one two <b>", settled, words);
                const spans = [...partial.querySelectorAll("span")].map((each) => each.textContent);
                inks.push([partial.textContent, ...spans]);
            }
            return inks;
        }""",
        words,
    )
    line = "anna one two ben <b>"
    assert shown == [[line, "anna", "ben"], [line, "anna", "one t", "ben"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, scheme: str):
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    word = {"start_s": 0, "end_s": 1, "speaker": "anna"}
    words = [word | {"text": text, "confidence": sure} for text, sure in (("one", 0.99), ("two", 0.7), ("six", 0.3))]
    line = json.dumps({"text": "one two six", "words": words})
    page.route("**/page/transcribe*", lambda route: route.fulfill(body=line + "\n"))
    open_file(page, CLIP.path)
    page.evaluate("document.getElementById('problem').hidden = document.getElementById('key-form').hidden = false")
    page.evaluate((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({resultTypes: ['violations', 'incomplete']})")
    rules = found["violations"] + found["incomplete"]
    told = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in rules]
    assert told == []


def test_every_control_has_a_name_in_the_accessibility_tree(page: Any):
    tree = page.locator("body").aria_snapshot()
    for each in (
        f'button "{START}"',
        'button "Open a file"',
        'slider "Position in the recording"',
        'group "Save the transcript"',
        'combobox "Microphone"',
        'checkbox "Punctuation and capitals"',
        "status",
    ):
        assert each in tree
    assert re.findall(r"- (?:button|combobox|checkbox|textbox|slider)(?:$|:)", tree, re.MULTILINE) == []


def test_a_phone_scrolls_in_one_direction(page: Any):
    page.set_viewport_size({"width": 360, "height": 740})
    open_file(page, CLIP.path)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_without_a_microphone_the_page_says_what_to_do(page: Any):
    page.evaluate(
        "void (navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotFoundError') })"
    )
    button(page, START).click()
    wait_for(page, "[role=alert]", "No microphone was found. Connect one")
    button(page, "Dismiss").click()
    sync_api.expect(button(page, START)).to_be_focused()


def test_a_gateway_that_went_away_is_told_and_found_again(page: Any):
    page.route("**/page/*", lambda route: route.abort())
    page.locator("#file").set_input_files(CLIP.path)
    wait_for(page, "[role=alert]", "The gateway does not answer")
    wait_for(page, "#health", "Gateway not reachable")
    page.unroute("**/page/*")
    wait_for(page, "#health", "Connected")
    assert not page.locator("[role=alert]").is_visible()
    open_file(page, CLIP.path)
    assert text_of(page) == CLIP.reference


def test_a_key_is_asked_for_and_kept_by_the_page_alone(page: Any, address: str):
    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"code": "unauthorized", "message": "no such key"}})

    page.route("**/page/models", check)
    page.goto(address)
    field = page.get_by_label("Key of this gateway")
    sync_api.expect(field).to_be_focused(timeout=TIMEOUT_MS)
    field.fill("wrong")
    page.keyboard.press("Enter")
    wait_for(page, "[role=alert]", "The gateway refused the key: no such key")
    field.fill("right")
    page.keyboard.press("Enter")
    wait_for(page, "#health", "Connected")
    assert not field.is_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
