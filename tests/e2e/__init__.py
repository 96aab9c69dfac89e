"""Tests on a real Debian 13 system that is booted for them; see `conftest.py` for the fixtures."""
