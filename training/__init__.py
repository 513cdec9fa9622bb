"""The recipe that trains the demo model. Its parts run as modules from the repository root, see README.md here."""
