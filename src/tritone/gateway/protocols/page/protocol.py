"""What the rest may know of the page for people."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="page",
    package=__package__,
    what="A page for microphone and files.",
    page="docs/applications/page.md",
    paths=("/", "/page/models", "/page/transcribe", "/page/written/{format}", "/page/{name}"),
    routes=("addresses:routes",),
    options="options:PageOptions",
)
