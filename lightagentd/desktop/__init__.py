"""Programs for the desktop of a user of the daemon: `lightagent-notify` shows the questions that wait for
them.
"""
