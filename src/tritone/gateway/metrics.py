"""The metrics of a gateway, in the text format of Prometheus. Names of callers are in none of them."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

NAMESPACE = "tritone_gateway"
LATENCIES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """What is counted in this process; see docs/applications/gateway.md for what each number means."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where = ["protocol", "model"]

        def histogram(name: str, text: str) -> Histogram:
            options = {"namespace": NAMESPACE, "registry": self.registry, "buckets": LATENCIES}
            return Histogram(name, text, where, **options)  # type: ignore[arg-type]

        self.latencies = {
            "first_partial": histogram(
                "first_partial_seconds", "From the audio of a segment's first word to its text."
            ),
            "final": histogram("final_seconds", "From the end of a segment by the client to its final text."),
            "turn": histogram("turn_seconds", "From a pause to what the classifier of ends of turns says."),
            "end_of_speech": histogram("end_of_speech_seconds", "From the audio of a segment's end to its final text."),
        }
        own = {"namespace": NAMESPACE, "registry": self.registry}
        self.requests = Counter("requests", "Requests and connections.", ["protocol", "outcome"], **own)  # type: ignore[arg-type]
        self.seconds = Histogram(
            "request_seconds",
            "Time of requests, not of WebSockets.",
            ["protocol"],
            namespace=NAMESPACE,
            registry=self.registry,
            buckets=TIMES,
        )
        self.refusals = Counter("refusals", "Refused by the gateway itself.", ["protocol", "code"], **own)  # type: ignore[arg-type]
        self.streams = Gauge("streams_open", "Live streams.", ["protocol"], **own)  # type: ignore[arg-type]
        self.opened = Counter("streams", "Live streams that were opened.", ["protocol"], **own)  # type: ignore[arg-type]
        audio = Counter("audio_seconds", "Audio that was taken, or spoken.", where, **own)  # type: ignore[arg-type]
        # It is counted with every chunk of every stream, which takes less time than to look for the counter.
        self.audio = lru_cache(maxsize=1024)(audio.labels)
        self.second_passes = Counter(
            "second_passes",
            "Segments whose text a second model was to write.",
            [*where, "outcome"],
            **own,  # type: ignore[arg-type]
        )
        upstream = ["upstream"]
        self.upstream_requests = Counter(
            "upstream_requests",
            "Requests to servers of others, attempts counted.",
            ["upstream", "outcome"],
            **own,  # type: ignore[arg-type]
        )
        self.upstream_seconds = Histogram(
            "upstream_seconds", "Their time.", upstream, namespace=NAMESPACE, registry=self.registry, buckets=TIMES
        )
        self.upstream_retries = Counter("upstream_retries", "Attempts after the first.", upstream, **own)  # type: ignore[arg-type]
        self.upstream_streams = Gauge("upstream_streams_open", "Streams to them.", upstream, **own)  # type: ignore[arg-type]
        self.upstream_circuit = Gauge(
            "upstream_circuit",
            "1 for the state that its circuit is in.",
            ["upstream", "state"],
            **own,  # type: ignore[arg-type]
        )
        self.draining = Gauge("draining", "Whether the gateway is ending.", **own)  # type: ignore[arg-type]

    def text(self) -> bytes:
        """All of them now."""
        return generate_latest(self.registry)
