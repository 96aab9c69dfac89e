"""Programs that systemd units start to ask an agent while nobody watches: `triage` and `prompt_file`.

They are clients like any other: they talk to the daemon's Varlink socket, and the kernel says who they are.
"""
