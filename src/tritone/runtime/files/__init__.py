"""What graph files say of themselves, read as data: nothing of a file is run, and nothing in it is trusted."""
