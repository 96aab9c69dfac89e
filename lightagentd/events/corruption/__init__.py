"""Damaged stores: detected before they are opened, set aside, and read as far as possible."""
