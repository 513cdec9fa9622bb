"""The part of the manifest of CTC models: a decoder that ranks hypotheses."""

from typing import Annotated

from pydantic import Field

from tritone.bundle.part import ASKED, TEXT, KindPart, Parts


class DecoderPart(KindPart):
    """The attention decoder that scores finished hypotheses.

    `bidirectional`: there is a right-to-left one too. `ctc_weight`, `reverse_weight`: the weights that the model was
    trained for, of the CTC score and of the right-to-left decoder; requests may ask for others.
    """

    key = "decoder"
    optional = True
    bidirectional: bool
    ctc_weight: Annotated[float, Field(ge=0)] = 0.5
    reverse_weight: Annotated[float, Field(ge=0, le=1)] = 0.0


PARTS = Parts(needs=TEXT, may_have=(*ASKED, "encoder.tags"), own=(DecoderPart,))
