"""What every server of ours holds against strangers: limits, refusals, connections, half-sent messages, TLS."""
