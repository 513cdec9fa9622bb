"""What manifests of voice activity detectors have."""

from tritone.bundle.part import AUDIO, Parts

PARTS = Parts(needs=(*AUDIO, "streaming"))
