"""Sessions: queue, copies, exports, imports, deletion, and recovery after a restart."""
