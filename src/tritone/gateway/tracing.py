"""Traces: a browser's request, the gateway's part of it, and Triton's, as one.

    with traces.request(scope):       a span of the gateway, child of the one that the client's headers name
        traces.outgoing(headers)      what Triton is sent, whose spans then are children of it

The headers are those of W3C Trace Context.
Without an address to send spans to there are none, and what the client sent is passed on to Triton as it is.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tritone.errors import MissingDependencyError
from tritone.installing import pip_install

PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # of W3C Trace Context, level 1
STATE = re.compile(r"[\x20-\x7e]{1,512}")
SERVICE = "tritone-gateway"


def context_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace that a client's headers name, if they do in the right form."""
    parent = headers.get("traceparent", "")
    if not PARENT.fullmatch(parent):
        return {}
    state = headers.get("tracestate", "")
    return {"traceparent": parent} | ({"tracestate": state} if STATE.fullmatch(state) else {})


class Traces:
    """The spans of one gateway.

    Args:
        address: of an OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318; "" sends none.

    Raises:
        MissingDependencyError: the packages for it are not installed.
    """

    def __init__(self, address: str = "", *, exporter: Any = None) -> None:
        self._tracer: Any = None
        if not address and exporter is None:
            return
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        except ImportError as error:
            raise MissingDependencyError(f"traces need OpenTelemetry: {pip_install('gateway', 'traces')}") from error
        processor: Any
        if exporter is not None:
            processor = SimpleSpanProcessor(exporter)
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = BatchSpanProcessor(OTLPSpanExporter(f"{address.rstrip('/')}/v1/traces"))
        self._provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tritone.gateway")

    @contextmanager
    def request(self, scope: Mapping[str, Any]) -> Iterator[None]:
        """A span for a request or connection of ASGI."""
        if self._tracer is None:
            yield
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        name = f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
        with self.span(name, headers):
            yield

    @contextmanager
    def span(self, name: str, headers: Mapping[str, str]) -> Iterator[None]:
        """A span of the gateway, below the one that a client's headers (names in lower case) name."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(context_of(headers))
        with self._tracer.start_as_current_span(name, context=parent, kind=SpanKind.SERVER):
            yield

    def outgoing(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What goes to Triton with the requests of a client that sent these headers."""
        if self._tracer is None:
            return context_of(headers)
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier or context_of(headers)

    def close(self) -> None:
        """Send what has not been sent; may take seconds."""
        if self._tracer is not None:
            self._provider.shutdown()
