"""`rfwp play`: the local web page."""

from typing import Annotated, Literal

import tyro

from rfwp.errors import missing_extra


def play(
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    port: int | None = None,
    semantics: Literal["authors", "true"] | None = None,
    browse: bool = False,
) -> None:
    """Watch a model write and read its fast weights, token by token, on a page of this machine; Ctrl-C ends it.

    Args:
        models: Folders of runs or of saved models, to compare side by side; the packaged model if left away.
        port: Where to serve the page; the usual port, or a free one, if left away.
        semantics: Of code execution, for the right answers; as the run says, or the authors', if left away.
        browse: Open the page in the browser.
    """
    try:
        from rfwp.play.server import open_socket, serve
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise missing_extra("play", "play") from None
    import torch

    from rfwp.play.shown import load_all

    # one step of a small model gains nothing from a second thread
    torch.set_num_threads(1)
    place = open_socket(port)
    shown = load_all(models, semantics)
    address = f"http://127.0.0.1:{place.getsockname()[1]}"
    print(f"{', '.join(shown)}: open {address} (Ctrl-C ends it)", flush=True)
    if browse:
        import webbrowser

        webbrowser.open(address)
    serve(shown, place)
