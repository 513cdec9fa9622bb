"""What a running server does now: rates, latency, queues, batches, streams and memory of each of its models."""

from tritone.monitor.activity import Activity, ModelActivity, activity
from tritone.monitor.snapshot import Monitor, Snapshot

__all__ = ["Activity", "ModelActivity", "Monitor", "Snapshot", "activity"]
