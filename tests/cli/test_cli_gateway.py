"""`tritone gateway` as a process of its own: a file of upstreams, and no Triton."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
from typer.testing import CliRunner

from elsewhere import Elsewhere, said, wav
from serving import kill_tree, lines_until
from tritone.cli.main import app


def test_models_of_a_file_are_served_without_a_triton(tmp_path: Path) -> None:
    with Elsewhere() as there:
        file = tmp_path / "upstreams.yaml"
        file.write_text(f'upstreams: [{{name: there, url: "{there.url}"}}]\n', encoding="utf-8")
        command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "gateway", "--port", "0"]
        options = ["--url", "none", "--upstreams", str(file)]
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        try:
            (line,) = lines_until(process, "Serving on")
            address = re.search(r"http://\S+:\d+", line)
            assert address is not None, line
            assert "asking no Triton" in line
            with openai.OpenAI(base_url=f"{address[0]}/v1", api_key="any", timeout=60, max_retries=0) as client:
                assert client.audio.transcriptions.create(file=wav(said(4)), model="").text == "four"
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0
            assert '"model": "there"' in log
        finally:
            kill_tree(process)


def test_a_file_that_is_wrong_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "upstreams.yaml"
    file.write_text("upstreams: [{name: a, url: x}]", encoding="utf-8")
    result = CliRunner().invoke(app, ["gateway", "--url", "none", "--upstreams", str(file)])
    assert result.exit_code == 2
    assert "url must be like" in re.sub(r"\s+", " ", result.output)
    result = CliRunner().invoke(app, ["gateway", "--url", "none"])
    assert result.exit_code == 2
    assert "no upstream" in re.sub(r"\s+", " ", result.output)
