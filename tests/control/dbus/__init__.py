"""Tests of the D-Bus plane."""
