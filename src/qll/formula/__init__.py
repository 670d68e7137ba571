"""The language. Pure Python: neither torch nor numpy is imported here."""
