"""The approver: people's answers to changes, past the daemon, which is not trusted with them."""
