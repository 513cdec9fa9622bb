"""Who said what: speakers of recordings and streams from embeddings of windows, their words and names, error rates."""

from tritone.diarization.activity import ActivityTurns, TurnRules, turns_of_activity
from tritone.diarization.diarizer import Diarization, Diarizer, Frames, Speaker, SpeakerStream
from tritone.diarization.error_rates import Errors, score_turns, sum_errors
from tritone.diarization.live import VoiceWords, WordSpeakers
from tritone.diarization.names import Name, name_speakers
from tritone.diarization.network import NetworkDiarizer, SpeakerWords, TurnsSoFar
from tritone.diarization.online import OnlineSpeakers
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.segmented import Segmenter
from tritone.diarization.voices import label_windows
from tritone.diarization.windows import Window, WindowCutter, turns_of
from tritone.diarization.words import speech_of, with_speakers

__all__ = [
    "ActivityTurns",
    "Diarization",
    "Diarizer",
    "Errors",
    "Frames",
    "Name",
    "NetworkDiarizer",
    "OnlineSpeakers",
    "Segmenter",
    "Speaker",
    "SpeakerOptions",
    "SpeakerStream",
    "SpeakerWords",
    "TurnRules",
    "TurnsSoFar",
    "VoiceWords",
    "Window",
    "WindowCutter",
    "WordSpeakers",
    "label_windows",
    "name_speakers",
    "score_turns",
    "speech_of",
    "sum_errors",
    "turns_of",
    "turns_of_activity",
    "with_speakers",
]
