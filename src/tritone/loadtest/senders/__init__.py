"""Sending requests over gRPC and HTTP."""
