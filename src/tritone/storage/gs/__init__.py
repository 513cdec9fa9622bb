"""Buckets of Google Cloud Storage."""
