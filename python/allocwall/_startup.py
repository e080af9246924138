"""What the interpreter runs at its start: nothing, unless ALLOCWALL_HUGEPAGES is set."""

import os


def start() -> None:
    if os.environ.get("ALLOCWALL_HUGEPAGES", "0") != "0":
        from . import hugepages

        hugepages._from_environment()
