"""Kits: folders of agents with skills, tools, agents, flows and references of their own.

`folder` looks at one, `own` reads what its agent has of it, `store` keeps those that were added at run time,
and `kits` adds, checks and removes them for the control planes.
"""
