"""`rfwp generate`: a language model goes on with a text."""

import sys
from codecs import BOM_UTF8
from typing import Annotated

import tyro

from rfwp.commands.console import console, show_written
from rfwp.errors import InvalidInput
from rfwp.lm.generate_options import GenerateOptions


def generate(model: Annotated[str, tyro.conf.Positional], options: GenerateOptions = GenerateOptions()) -> None:  # noqa: B008
    """Go on with a text, word by word, in constant time and memory a word.

    Args:
        model: A language model: the folder of its run, or of the saved model.
    """
    from rfwp.lm.generate import beyond_training, check_options, prompt_words, tell, tell_many, unknown_words, write_lines
    from rfwp.lm.saved import load_language_model
    from rfwp.train.speed import find_device

    check_options(options)
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    network, words = load_language_model(model, find_device(options.device))
    begun = prompt_words(prompt)
    for note in (unknown_words(begun, words), beyond_training(network, begun, options.tokens)):
        if note:
            print(f"rfwp: {note}", file=sys.stderr)
    screen = console()
    if options.out is not None:
        write_lines(tell_many(network, words, prompt, options), options.out)
        show_written(screen, options.out)
    elif options.streams > 1:
        for line in tell_many(network, words, prompt, options):
            screen.out(line, highlight=False)
    else:
        try:
            for piece in tell(network, words, prompt, options):
                screen.out(piece, end="", highlight=False)
        except KeyboardInterrupt:
            screen.out("")
            raise
        screen.out("")


def _standard_input() -> str:
    if sys.stdin is None:
        raise InvalidInput("standard input is closed; give the text behind --prompt")
    try:
        # as in texts, a byte order mark is not part of the first word
        return sys.stdin.buffer.read().removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input is not UTF-8 (byte {error.start}); convert it to UTF-8") from None
