"""Keeps conversations within the models' windows. `compactor.Compactor` is what a turn uses."""
