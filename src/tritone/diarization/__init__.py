"""Who said what: speakers of recordings and streams from embeddings of windows, their words and names, error rates."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
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

__getattr__ = attributes(
    __name__,
    {
        **dict.fromkeys(("ActivityTurns", "TurnRules", "turns_of_activity"), "tritone.diarization.activity"),
        **dict.fromkeys(
            ("Diarization", "Diarizer", "Frames", "Speaker", "SpeakerStream"), "tritone.diarization.diarizer"
        ),
        **dict.fromkeys(("Errors", "score_turns", "sum_errors"), "tritone.diarization.error_rates"),
        **dict.fromkeys(("VoiceWords", "WordSpeakers"), "tritone.diarization.live"),
        **dict.fromkeys(("Name", "name_speakers"), "tritone.diarization.names"),
        **dict.fromkeys(("NetworkDiarizer", "SpeakerWords", "TurnsSoFar"), "tritone.diarization.network"),
        "OnlineSpeakers": "tritone.diarization.online",
        "SpeakerOptions": "tritone.diarization.options",
        "Segmenter": "tritone.diarization.segmented",
        "label_windows": "tritone.diarization.voices",
        **dict.fromkeys(("Window", "WindowCutter", "turns_of"), "tritone.diarization.windows"),
        **dict.fromkeys(("speech_of", "with_speakers"), "tritone.diarization.words"),
    },
)
