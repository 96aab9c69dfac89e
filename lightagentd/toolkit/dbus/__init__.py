"""The D-Bus side of the tools `dbus` and `systemd`."""
