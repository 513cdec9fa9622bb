"""File formats of transcripts, speech segments and speaker turns: text in and out, no files and no audio."""
