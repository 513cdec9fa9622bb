"""Lines: recordings and live streams become lines of plain text."""
