"""The parts that the files in `tools/` are made of. They run inside workers."""
