"""What is sent, and how answers are checked."""
