"""What the exports of all families share."""
