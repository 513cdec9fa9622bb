"""Buckets of S3."""
