"""Wyoming, the protocol of Home Assistant's voice services."""
