"""From the outputs of a network to transcripts: the roles of a search, and what they exchange.

    Searching       (base.py, ctc.py, transducer.py) one for a pipeline. Has the model's modes, language model and
                    decoder; starts searches, and advances those of a batch together, each in its own mode.
    Search          (search.py) one for an utterance or a segment of a stream: its options, the state of its mode and
                    what it has reported. Frames count from its start.
    News            (search.py) what a step has changed in one search: further tokens, and a tail that may still change.
    Segment         (segment.py) one utterance of a stream: puts the news of its search at their place in the stream.
    ReadingBuilder  (readings.py) tokens to text, which the vocabulary's `Speller` spells, and to token and word times.
    Rescorer        (rescoring.py) ranks finished hypotheses by the attention decoder.

Whole utterances:

    outputs, options  ->  searching.search  ->  hypotheses  ->  utterance  ->  Transcript

On a CPU, transducers search the calls of a batch `together` (together.py), once all are computed.

A stream, after each step of the network, and at the end of a segment:

    outputs   ->  searching.advance(searches, outputs)  ->  News        ->  segment.take     ->  segment.partial()
    searches  ->  searching.finish(searches)            ->  hypotheses  ->  segment.reading  ->  Transcript

A hypothesis is whole: it begins with the tokens that its search has reported. The segment has written those already,
so a step costs what is new in it, however long the stream is.
"""
