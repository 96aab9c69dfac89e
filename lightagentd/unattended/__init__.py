"""Programs that systemd units start to ask an agent without a person: `triage` and `prompt_file`.

They are clients like any other: they use the daemon's Varlink socket, and the kernel identifies them.
"""
