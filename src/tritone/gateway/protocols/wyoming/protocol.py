"""What the rest may know of Wyoming."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="wyoming",
    package=__package__,
    what="Wyoming, of Home Assistant's voice services: speech in and out by TCP.",
    page="docs/applications/gateway-wyoming.md",
    serve="server:serve",
    port="Port for Home Assistant (Wyoming), such as 10300; by TCP, without keys.",
    options="options:WyomingOptions",
)
