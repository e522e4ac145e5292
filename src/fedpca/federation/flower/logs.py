"""The library's log in Flower's processes: shown wherever Flower shows its own."""

import logging


def show_in_flower() -> None:
    """Hand what the library logs to the handlers of Flower's logger, which print and stream it."""
    ours, flower = logging.getLogger("fedpca"), logging.getLogger("flwr")
    for handler in flower.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
