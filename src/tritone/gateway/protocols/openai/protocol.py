"""What the rest may know of the protocols of OpenAI's clients."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="openai",
    package=__package__,
    what="OpenAI's: recordings and speech by HTTP, live streams by Realtime sessions.",
    page="docs/applications/gateway-openai.md",
    paths=(
        "/v1/models",
        "/v1/models/{model:path}",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
        "/v1/audio/voices",
        "/v1/realtime",
    ),
    routes=("rest:rest_routes", "realtime:realtime_routes"),
)
