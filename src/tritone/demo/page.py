"""The page on this machine: bundles on a Triton, and a gateway in front of it that serves the page.

with serve_page(["demo-asr"], print) as server:
    server.run()  # until Ctrl-C; or: with server.background(): ...
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tritone.bundle import Bundle
from tritone.bundle.manifest import Manifest
from tritone.demo.run import DRAIN_S
from tritone.gateway.options import DEFAULT_PORT, GatewayOptions
from tritone.gateway.server import GatewayServer, listen
from tritone.kinds import kind_of
from tritone.kinds.generic.part import GenericPart
from tritone.kinds.whisper.part import WhisperPart
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer
from tritone.server.watch import kept_alive

MODELS = ModelOptions(max_batch_size=8, max_streams=16)
PAUSE_S = 0.8  # that ends a segment where no voice activity is served
TURN_TENSORS = ["waveform", "probability"]  # of a model that says when a speaker has finished
HOST = "localhost"  # the name by which browsers give a page without TLS the microphone


@contextmanager
def serve_page(
    bundles: Sequence[str | Path],
    stage: Callable[[str], None],
    *,
    port: int = DEFAULT_PORT,
    on_address: Callable[[str], None] = lambda address: None,
) -> Iterator[GatewayServer]:
    """Serve bundles behind a gateway on loopback; both are gone afterwards.

    Args:
        bundles: folders, or names of shipped bundles. The first that writes texts is the page's choice. If that is for
            recordings alone, and voice activity is served, it writes live streams, too, each utterance at its end.
            Beside voice activity one of `tritone export smart-turn` says when turns end.
        stage: is called with what takes a moment.
        port: of the page; 0 takes any that is free.
        on_address: is called with the address of the page when it can be opened.

    Returns:
        A gateway that is not running yet.

    Raises:
        BundleError: a bundle is not one.
        OperatorError: a bundle cannot be served, or the port cannot be listened on.
    """
    listen(GatewayOptions.host, port).close()  # the gateway will, a minute later
    with tempfile.TemporaryDirectory(prefix="tritone-page-") as folder:
        repository = Path(folder) / "repository"
        stage(f"building a model repository from {', '.join(map(str, bundles))}")
        chosen: dict[str, str] = {}
        detects = any(hasattr(kind_of(Bundle.open(bundle)).front(), "detect") for bundle in bundles)
        turn_model = ""
        for bundle in bundles:
            manifest = Bundle.open(bundle).manifest
            writes, options = manifest.vocabulary is not None, MODELS
            if manifest.find(WhisperPart) is not None:
                options = replace(MODELS, decoding=f'{{"pause_s": {PAUSE_S}}}')
            elif writes:
                options = replace(MODELS, endpoint_silence_after_speech_s=PAUSE_S)
            models = {each.mode: each.name for each in build_repository([bundle], repository, options=options)}
            if writes and "streaming" not in models and not chosen and detects:
                chosen["streaming"] = models["offline"]
            if writes:
                chosen = models | chosen
            if detects and _finds_turns(manifest):
                turn_model = models["generic"]
        stage("starting Triton")
        ports = ServerOptions.on_free_ports(drain_s=DRAIN_S)
        with TritonServer(repository, ports) as triton, kept_alive(triton, stage):
            gateway = GatewayOptions(
                triton=f"http://{triton.http_address}",
                port=port,
                model=chosen.get("offline", ""),
                stream_model=chosen.get("streaming", ""),
                turn_model=turn_model,
            )
            yield GatewayServer(gateway, on_started=lambda server: on_address(f"http://{HOST}:{server.port}/"))
            stage("stopping Triton")


def _finds_turns(manifest: Manifest) -> bool:
    """Is it a model that says of audio how likely a speaker has finished? See docs/applications/turns.md."""
    tensors = manifest.find(GenericPart)
    return tensors is not None and [each.name for each in (*tensors.inputs, *tensors.outputs)] == TURN_TENSORS
