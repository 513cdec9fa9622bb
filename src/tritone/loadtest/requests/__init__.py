"""Load of whole requests: closed and open loops."""
