"""Throws hostile inputs at every reader of outside bytes: a million in `make fuzz`, 2 % of that in `make test`.

Every input must be read or refused with a `wgemma.Error`, in bounded time and memory. Anything else is an escape.
"""
