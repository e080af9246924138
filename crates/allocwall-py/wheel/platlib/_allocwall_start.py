"""What the interpreter runs at its start: nothing, unless ALLOCWALL_HUGEPAGES is set. A module of its own, since 3.15 imports it,
and with it its package, before anybody has asked for the variable."""

import os


def start() -> None:
    if os.environ.get("ALLOCWALL_HUGEPAGES", "") not in ("", "0"):
        from allocwall import hugepages

        hugepages._from_environment()
