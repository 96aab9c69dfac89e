"""Varlink over Unix sockets, for the control plane and for the workers."""
