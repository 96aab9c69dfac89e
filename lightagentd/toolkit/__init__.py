"""The modules behind the files in `tools/`. They run inside workers."""
