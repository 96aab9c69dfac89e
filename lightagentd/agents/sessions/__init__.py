"""Sessions and what becomes of them: queue, copies, exports, imports, deletion, and what a restart finds."""
