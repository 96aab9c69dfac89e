"""Keeps conversations within the models' windows. A turn uses `compactor.Compactor`."""
