"""Opening a sender for an endpoint's protocol."""

from tritone.client.endpoint import Endpoint
from tritone.loadtest.senders.sender import Sender


def open_sender(endpoint: Endpoint) -> Sender:
    """Open a sender for an endpoint's protocol."""
    # Each protocol brings heavy imports that a user of the other one should not wait for.
    if endpoint.protocol == "grpc":
        from tritone.loadtest.senders.grpc import GrpcSender

        return GrpcSender(endpoint)
    from tritone.loadtest.senders.http import HttpSender

    return HttpSender(endpoint)
