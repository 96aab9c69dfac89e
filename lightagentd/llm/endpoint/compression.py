"""Decompresses answers that are compressed although the request asked for none.

httpx does that without a bound: a few kilobytes, compressed twice, would fill the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

PIECE_BYTES = 64 << 10
_GZIP_OR_ZLIB = 47
_RAW = -15


class NotReadable(ValueError):
    """The bytes are not what the header Content-Encoding says, or it says something unknown."""


class Decompressor:
    """One for each response. `encoding` is the value of its header Content-Encoding. Raises NotReadable."""

    def __init__(self, encoding: str) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise NotReadable(f"is compressed with {encoding[:40]!r}, though no compression was asked for")
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._may_be_raw = encoding == "deflate"

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress the bytes, in pieces of at most PIECE_BYTES."""
        while chunk:
            if self._zlib.eof:
                self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)  # gzip may have several members
            try:
                piece = self._zlib.decompress(chunk, PIECE_BYTES)
            except zlib.error as err:
                if not self._may_be_raw:
                    raise NotReadable(f"holds bytes that cannot be decompressed ({err})") from err
                # "deflate" means the zlib format, but some servers leave its two bytes of a header out.
                self._may_be_raw = False
                self._zlib = zlib.decompressobj(_RAW)
                continue
            self._may_be_raw = False
            chunk = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
            if piece:
                yield piece
