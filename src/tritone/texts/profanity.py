"""Words that many readers do not want to see, masked or removed; English ones, and what users add to them."""

from collections.abc import Set

from tritone.texts.written import row

# Common swear words and slurs. Words that mean something harmless as well ("cock", "prick", "damn it" apart) are left
# to users, who add words of their own and of other languages.
PROFANE = frozenset(
    row(
        "arse arses arsehole arseholes asshole assholes bastard bastards bitch bitches bitching bitchy bollocks "
        "bullshit cocksucker cocksuckers crap crappy cunt cunts damn damned dammit dickhead dickheads fag fags "
        "faggot faggots fuck fucks fucked fucker fuckers fuckin fucking goddamn goddammit motherfucker "
        "motherfuckers motherfucking nigger niggers piss pissed pissing shit shits shitted shitting shitty slut "
        "sluts slutty twat twats wanker wankers whore whores"
    )
)
EDGES = ".,?!:;\"'()[]"


def is_profane(word: str, more: Set[str] = frozenset()) -> bool:
    """Whether a word is one of these, or of `more` (case-folded), whatever its case and the punctuation around it."""
    bare = word.strip(EDGES).casefold()
    return bare in PROFANE or bare in more


def masked(word: str) -> str:
    """The first letter and a star for each other letter; punctuation around it stays."""
    bare = word.strip(EDGES)
    return word.replace(bare, bare[:1] + "*" * (len(bare) - 1)) if bare else word
