"""What several commands share: options, printers, interrupts."""
