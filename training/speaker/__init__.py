"""Training of the demo's speaker model; not part of the installed package."""
