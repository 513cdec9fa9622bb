"""The audio that is sent, and checks of the answers."""
