"""Servers of the Model Context Protocol as tools: `server_file` is what an administrator writes and approves,
`connection` speaks the protocol over `stdio` or `http`, `tool` makes the functions.
"""
