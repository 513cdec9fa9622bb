"""Sending load to a server and measuring it."""
