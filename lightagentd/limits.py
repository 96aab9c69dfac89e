"""Limits shared by several parts of the program; `config` has those that an administrator may set."""

MAX_MESSAGE_BYTES = 16 << 20
"""The largest message that any of our sockets takes."""
MAX_ATTACHMENTS = 32
"""How many files may go with one prompt."""
