"""Load tests: sending load to a server, measuring it, showing and comparing what was measured."""
