"""The interpreter runs this at its start. It does nothing unless ALLOCWALL_HUGEPAGES is set. It is a separate module, because 3.15
imports the module and its package before the variable can be checked."""

import os


def start() -> None:
    if os.environ.get("ALLOCWALL_HUGEPAGES", "") not in ("", "0"):
        from allocwall import hugepages

        hugepages._from_environment()
