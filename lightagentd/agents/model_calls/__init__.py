"""Model calls: asking for the next step, retries, compaction, metering."""
