"""Smart Turn and other classifiers of Whisper's features that say whether somebody has finished."""
