"""The names on the wire: tensors of a speech model, the same as in the deployments this project replaces."""

WAV = "WAV"  # FP32 (samples,) in [-1, 1]
WAV_LENS = "WAV_LENS"  # INT32 (1,), valid samples of WAV
TRANSCRIPTS = "TRANSCRIPTS"  # STRING (1,)
EMBEDDINGS = "EMBEDDINGS"  # FP32 (dim,)
DETAILS = "DETAILS"  # STRING (1,), JSON of a Transcript; computed for requests that want it
# INT32 (frames,), the best token of each frame; of decoder stages that are built for it, for clients that make text of
# it themselves, as NVIDIA's for Jasper do.
CLASS_IDS = "CLASS_IDS"

# Axes of the outputs of offline models of a kind, by the clients that people have: those of WeNet's runtime take the
# first element for the text, those of sherpa's join the elements of the first row. Outputs of streams have one axis,
# the rows: the one row's elements are joined, or the first one is taken.
OFFLINE_AXES = {"ctc": 1, "transducer": 2}

# Bits of a request's flags in a sequence, as in TRITONSERVER_RequestFlag.
SEQUENCE_START = 1
SEQUENCE_END = 2
