"""Containers of Azure Blob Storage."""
