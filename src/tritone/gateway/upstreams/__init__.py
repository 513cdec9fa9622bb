"""Upstreams: models of other servers, which speak OpenAI's API, as models of the gateway."""
