"""The embedded model: `client.RunbookClient`, and how it finds the skill for a prompt (`matching`)."""
