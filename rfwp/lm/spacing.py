"""Spaces between words: as they are, or as they were before WikiText's tokenisation."""

from rfwp.tasks.reading import EOS

JOINTS = {"@-@": "-", "@,@": ",", "@.@": "."}
CLOSING = {",", ".", ";", ":", "!", "?", ")", "]", "%", "'s", "'t", "n't", "'re", "'ve", "'ll", "'d", "'m"}
OPENING = {"(", "[", "$", "£"}


class Spacing:
    """The text of one word after another, with what stands between it and the word before.

    `<eos>` breaks the line; without `breaks` it is a word like others, so that a text stays one line.

    >>> spacing = Spacing(detokenise=True)
    >>> "".join(map(spacing, "a well @-@ known one , too".split()))
    'a well-known one, too'
    """

    def __init__(self, detokenise: bool = False, breaks: bool = True):
        self.detokenise, self.breaks = detokenise, breaks
        self._glued = True
        self._quoted = False

    def __call__(self, word: str) -> str:
        if word == EOS:
            # a quotation that a line leaves open does not go on in the next
            self._quoted = False
            if self.breaks:
                self._glued = True
                return "\n"
        glued, self._glued = self._glued, False
        if not self.detokenise:
            return word if glued else f" {word}"
        if word == '"':
            # every other one closes
            self._quoted = not self._quoted
            self._glued = self._quoted
            glued = glued or not self._quoted
        elif word in JOINTS:
            word, glued, self._glued = JOINTS[word], True, True
        elif word in OPENING:
            self._glued = True
        elif word in CLOSING:
            glued = True
        return word if glued else f" {word}"
