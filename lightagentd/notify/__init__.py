"""`lightagent-away.service`: tells people who are away what waits for them and what happened."""
