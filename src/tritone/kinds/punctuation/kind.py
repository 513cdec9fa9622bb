"""Models that write marks behind words: on a server arrays like those of generic models, in process texts."""

from tritone.bundle.manifest import Manifest
from tritone.kinds.generic.kind import GenericKind
from tritone.kinds.generic.part import GenericPart
from tritone.kinds.punctuation.part import PARTS, PunctuationPart


class PunctuationKind(GenericKind):
    """Served as its graph is, with ids of words in and scores of marks out: what becomes a text is for who asks."""

    name = "punctuation"
    noun = "a punctuation model"
    does = "it writes marks behind the words of texts"
    usage = "Use it with `tritone transcribe --punctuation-model` or tritone.load"
    parts = PARTS
    in_process = "tritone.kinds.punctuation.model:Punctuator"

    def fault(self, manifest: Manifest) -> str | None:
        if (fault := super().fault(manifest)) is not None:
            return fault
        if manifest.part(GenericPart) != manifest.part(PunctuationPart).tensors:
            return f"kind is {self.name!r}, whose graph takes ids and lengths of texts and gives scores of its marks"
        return None


KIND = PunctuationKind()
