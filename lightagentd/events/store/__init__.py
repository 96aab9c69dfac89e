"""The history on disk: layout, search, migration, retention, compaction."""
