"""What an agent may be called."""

from __future__ import annotations

import re

NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
"""An agent's name is also a systemd instance name and a D-Bus path element. That of a member of a kit is the
kit's agent and its own, with a dot between them.
"""
