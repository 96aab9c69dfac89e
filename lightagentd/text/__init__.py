"""Text processing: strict JSON, ranking, and visible bytes. It depends on no other package of lightagentd."""
