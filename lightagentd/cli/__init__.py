"""`lactl`, the command: one module for each noun, listed in `main.COMMANDS`, imported only when it is used.

A short command such as `lactl status` imports only click, `client`, `errors` and small modules.
"""
