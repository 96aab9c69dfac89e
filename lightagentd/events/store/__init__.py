"""How the history lies on disk: layout, search, migration, retention, compaction."""
