"""The page for people, and the addresses that it asks."""
