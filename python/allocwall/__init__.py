"""CPython's small objects on huge pages, on interpreters nobody rebuilt.

    import allocwall
    allocwall.hugepages.enable()

or `python -m allocwall run [-m] app.py ...`, or ALLOCWALL_HUGEPAGES=1 in the environment.
"""

from . import hugepages

__all__ = ["hugepages"]
