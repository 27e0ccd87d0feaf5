"""The papers' tables and figures again, with our numbers beside theirs.

``python -m reproduce PAPER [ITEM ...]``; ``python -m reproduce --list``.
"""
