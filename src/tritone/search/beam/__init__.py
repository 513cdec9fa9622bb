"""What all beam searches share: trees of prefixes, records and their pruning."""
