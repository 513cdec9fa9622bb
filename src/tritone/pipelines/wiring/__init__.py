"""Models wired to each other: the file that says how, the check of the wires, and the ensemble in this process."""
