"""Models that write marks behind words: on a server arrays like those of generic models, in process texts."""

from tritone.bundle.manifest import Manifest
from tritone.kinds.generic.kind import GenericKind


class PunctuationKind(GenericKind):
    """Served as its graph is, with ids of words in and scores of marks out: what becomes a text is for who asks."""

    name = "punctuation"
    noun = "a punctuation model"
    does = "it writes marks behind the words of texts"
    usage = "Use it with `tritone transcribe --punctuation-model` or tritone.load"
    needs = ("generic", "punctuation")
    in_process = "tritone.kinds.punctuation.model:Punctuator"

    def part_fault(self, manifest: Manifest) -> str | None:
        if (fault := super().part_fault(manifest)) is not None:
            return fault
        assert manifest.punctuation is not None
        if manifest.generic != manifest.punctuation.tensors:
            return f"kind is {self.name!r}, whose graph takes ids and lengths of texts and gives scores of its marks"
        return None


KIND = PunctuationKind()
