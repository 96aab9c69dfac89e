"""The pages of the history's file, read without LMDB.

LMDB maps its file and trusts it: a damaged page ends the process with SIGBUS, SIGSEGV or SIGABRT, or makes it
loop forever. Here each page is read with pread(2) and checked before it is used, so a damaged file raises
`Torn`. `examination` uses this before LMDB opens a store, and `salvage` to read the rest of a damaged one: on
200 damaged stores LMDB's own cursors gave fewer events (tests/events/corruption/compare.py). Nothing is ever
written.

The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db), in the machine's byte order. A
tree is a database: FREE has the pages that may be used again, MAIN the roots of all others.
"""

from __future__ import annotations

import bisect
import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_PAGE = struct.Struct("=QHHHH")
"""Number, pad, flags, lower, upper; of an overflow page the last two are the count of its pages."""
_NODE = struct.Struct("=HHHH")
_META = struct.Struct("=IIQQ")
_TREE = struct.Struct("=IHHQQQQQ")
_LAST = struct.Struct("=QQ")
_WORD = struct.Struct("=Q")
PAGE_HEADER = _PAGE.size
NODE_HEADER = _NODE.size
BRANCH, LEAF, OVERFLOW, METAPAGE = 0x01, 0x02, 0x04, 0x08
_KIND = 0x6F
"""All flags of a page but those that only pages in memory have."""
BIG, SUBTREE = 0x01, 0x02
_NUMBERED = 0x08
"""The flag of a database whose keys are numbers."""
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NONE = (1 << 64) - 1
_DEEPEST = 32
"""LMDB's own cursors go no deeper (CURSOR_STACK)."""
_PAGE_SIZES = frozenset(1 << power for power in range(8, 17))


class Torn(Exception):
    """A page is invalid; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A database: its root, None when it is empty."""

    depth: int
    entries: int
    root: int | None
    by_number: bool = False
    """Whether its keys are numbers, as those of FREE are."""


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two pages that name the trees. The one of the newer transaction is in force."""

    txn: int
    page_size: int
    last_page: int
    free: Tree
    main: Tree


class Node(NamedTuple):
    """An entry of a leaf. `value` is in the page; an overflow value has a page number and a size."""

    key: bytes
    flags: int
    value: bytes
    page: int
    size_bytes: int


class PageFile:
    """An open `data.mdb`. The caller owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size_bytes = os.fstat(fd).st_size
        self.page_size = 4096

    def meta(self) -> Meta:
        """The newer of the two meta pages. Raises Torn when LMDB would refuse to open the file, which reads
        the heads of both. The trees of the older one do not matter, because a commit overwrites them.
        """
        _, page_size, txn = self._meta_head(0)
        _, other_size, other_txn = self._meta_head(page_size)
        if page_size != other_size:
            raise Torn("its two first pages do not agree")
        return self._taken(self._meta_at(page_size if other_txn > txn else 0))

    def any_meta(self) -> list[Meta]:
        """The readable meta pages, the newer first; for a damaged file."""
        found = []
        for at in (0, *sorted(_PAGE_SIZES)):
            try:
                meta = self._meta_at(at)
            except Torn:
                continue
            if at in (0, meta.page_size):
                found.append(self._taken(meta))
        return sorted(found, key=lambda meta: -meta.txn)

    def _taken(self, meta: Meta) -> Meta:
        self.page_size = meta.page_size
        return meta

    def _meta_head(self, at: int) -> tuple[bytes, int, int]:
        """The page's bytes, the size of pages, and the transaction that wrote it. Raises Torn."""
        raw = os.pread(self.fd, PAGE_HEADER + 136, at)
        name = f"page {0 if at == 0 else 1}"
        if len(raw) < PAGE_HEADER + 136:
            raise Torn(f"{name} is cut off")
        flags = _PAGE.unpack_from(raw)[2]
        magic, version = _META.unpack_from(raw, PAGE_HEADER)[:2]
        if not flags & METAPAGE or magic != _MAGIC or version != _VERSION:
            raise Torn(f"{name} is not the first of a database")
        at_trees = PAGE_HEADER + _META.size
        page_size = _TREE.unpack_from(raw, at_trees)[0]
        if page_size not in _PAGE_SIZES:
            raise Torn(f"{name} has sizes that cannot be")
        return raw, page_size, _LAST.unpack_from(raw, at_trees + 2 * _TREE.size)[1]

    def _meta_at(self, at: int) -> Meta:
        """The whole meta page. Raises Torn."""
        raw, page_size, txn = self._meta_head(at)
        at_trees = PAGE_HEADER + _META.size
        last_page = _LAST.unpack_from(raw, at_trees + 2 * _TREE.size)[0]
        if not 1 <= last_page < _NONE // page_size:
            raise Torn(f"page {0 if at == 0 else 1} has sizes that cannot be")
        free = self.tree(raw[at_trees : at_trees + _TREE.size], last_page, by_number=True)
        main = self.tree(raw[at_trees + _TREE.size : at_trees + 2 * _TREE.size], last_page)
        return Meta(txn=txn, page_size=page_size, last_page=last_page, free=free, main=main)

    def tree(self, raw: bytes, last_page: int, *, by_number: bool = False) -> Tree:
        """The tree described by an entry of MAIN or of a meta page. Raises Torn."""
        if len(raw) != _TREE.size:
            raise Torn("a database's entry has a wrong length")
        pad, flags, depth, _, _, _, entries, root = _TREE.unpack(raw)
        if flags != (_NUMBERED if by_number else 0) or (pad and not by_number):
            raise Torn("a database is of a kind that there is not in a history")
        if root == _NONE:
            return Tree(0, 0, None, by_number)
        if not 2 <= root <= last_page or not 1 <= depth <= _DEEPEST:
            raise Torn(f"a database's root, page {root}, cannot be")
        return Tree(depth, entries, root, by_number)

    def page(self, number: int) -> bytes:
        """Raises Torn when the file ends before it; OSError."""
        raw = os.pread(self.fd, self.page_size, number * self.page_size)
        if len(raw) < self.page_size:
            raise Torn(f"page {number} is cut off")
        return raw

    def value(self, node: Node) -> bytes:
        """The value of an entry; overflow pages are checked first. Raises Torn."""
        if node.page:
            self.check_big(node)
        return self.rest_of(node)

    def rest_of(self, node: Node) -> bytes:
        """The remaining part of an entry's value, if it can have been there. Raises Torn."""
        if not node.page:
            return node.value
        if not 0 < node.size_bytes <= self.size_bytes or node.page > self.size_bytes // self.page_size:
            raise Torn(f"page {node.page} is cut off")
        return os.pread(self.fd, PAGE_HEADER + node.size_bytes, node.page * self.page_size)[PAGE_HEADER:]

    def check_big(self, node: Node) -> int:
        """The number of overflow pages of a value. Raises Torn."""
        number, pages = node.page, (PAGE_HEADER - 1 + node.size_bytes) // self.page_size + 1
        if (number + pages) * self.page_size > self.size_bytes:
            raise Torn(f"page {number} is cut off")
        raw = os.pread(self.fd, PAGE_HEADER, number * self.page_size)
        own, _, flags, low, high = _PAGE.unpack_from(raw)
        if own != number or flags & _KIND != OVERFLOW or low | high << 16 < pages:
            raise Torn(f"page {number} is not the start of a long value")
        return pages

    def nodes(self, number: int, raw: bytes, kind: int) -> list[int]:
        """The offsets of the entries in a page. Raises Torn."""
        own, _, flags, lower, upper = _PAGE.unpack_from(raw)
        if own != number or flags & _KIND != kind:
            raise Torn(f"page {number} is not what the page above it says")
        if not PAGE_HEADER <= lower <= upper <= self.page_size or lower & 1:
            raise Torn(f"page {number} has bounds that cannot be")
        offsets = struct.unpack_from(f"={(lower - PAGE_HEADER) // 2}H", raw, PAGE_HEADER)
        if offsets and (min(offsets) < upper or max(offsets) > self.page_size - NODE_HEADER):
            raise Torn(f"page {number} has entries outside of it")
        return list(offsets)

    def leaf(self, number: int, raw: bytes) -> list[Node]:
        """The entries of a leaf. Raises Torn."""
        return [self._node(number, raw, at) for at in self.nodes(number, raw, LEAF)]

    def _node(self, number: int, raw: bytes, at: int) -> Node:
        """The entry that begins somewhere in a page. Raises Torn."""
        low, high, flags, key_bytes = _NODE.unpack_from(raw, at)
        start = at + NODE_HEADER + key_bytes
        size_bytes = low | high << 16
        big = bool(flags & BIG)
        if flags & ~(BIG | SUBTREE) or start + (8 if big else size_bytes) > self.page_size:
            raise Torn(f"page {number} has an entry that reaches out of it")
        key = raw[at + NODE_HEADER : start]
        if big:
            return Node(key, flags, b"", _WORD.unpack_from(raw, start)[0], size_bytes)
        return Node(key, flags, raw[start : start + size_bytes], 0, size_bytes)

    def children(self, number: int, raw: bytes, last_page: int) -> list[tuple[int, bytes]]:
        """The pages below a branch, each with the lower bound of its keys. Raises Torn."""
        found = []
        for at in self.nodes(number, raw, BRANCH):
            low, high, top, key_bytes = _NODE.unpack_from(raw, at)
            child = low | high << 16 | top << 32
            if at + NODE_HEADER + key_bytes > self.page_size or not 2 <= child <= last_page:
                raise Torn(f"page {number} has an entry that cannot be")
            found.append((child, raw[at + NODE_HEADER : at + NODE_HEADER + key_bytes]))
        if not found:
            raise Torn(f"page {number} is empty")
        return found


_Below = tuple[int, int, bytes | None, bytes | None]
"""A page that is to be read, how deep it is, and the keys between which its own are."""


class Walk:
    """One walk over trees. It remembers the pages it saw, to find pages used twice and endless walks."""

    def __init__(self, file: PageFile, meta: Meta, *, tolerant: bool = False) -> None:
        """A tolerant walk skips torn pages and continues; `torn` counts them."""
        self.file = file
        self.meta = meta
        self.tolerant = tolerant
        self.torn: list[str] = []
        self._seen = bytearray(meta.last_page // 8 + 1)

    def trees(self) -> dict[str, Tree]:
        """The named databases. Raises Torn, OSError."""
        found = {}
        for nodes in self.leaves(self.meta.main):
            for node in nodes:
                name = node.key.decode("utf-8", "replace")
                try:
                    if node.flags & SUBTREE:
                        found[name] = self.file.tree(self.file.value(node), self.meta.last_page)
                except (Torn, OSError) as err:
                    if not self.tolerant:
                        raise
                    self.torn.append(f"{name}: {err}")
        return found

    def leaves(self, tree: Tree, *, newest_first: bool = False) -> Iterator[list[Node]]:
        """Each leaf's entries, checked, in the order of their keys or backwards. Raises Torn, OSError."""
        if tree.root is None:
            return
        order = -1 if newest_first else 1
        stack: list[_Below] = [(tree.root, 1, None, None)]
        last: bytes | None = None
        while stack:
            number, depth, low, high = stack.pop()
            try:
                self._see(number, 1)
                raw = self.file.page(number)
                if depth < tree.depth:
                    below = self.file.children(number, raw, self.meta.last_page)
                    bounds = [low, *(key for _, key in below[1:]), high]
                    parts = [
                        (child, depth + 1, bounds[at], bounds[at + 1]) for at, (child, _) in enumerate(below)
                    ]
                    stack += parts[::-order]
                    continue
                nodes = self.file.leaf(number, raw)
                for node in nodes:
                    if node.flags & BIG:
                        self._see(node.page, self._pages_of(node))
                keys = [node.key for node in nodes[::order]]
                _check_order(number, keys, last, tree, order)
                if not tree.by_number:
                    _check_bounds(number, keys[::order], low, high)
            except (Torn, OSError) as err:
                if not self.tolerant:
                    raise
                self.torn.append(str(err))
                continue
            last = keys[-1] if keys else last
            yield nodes[::order]

    def leaf_pages(self, tree: Tree, start: bytes) -> Iterator[tuple[int, bytes]]:
        """A tree's leaves, from that with some key on, each with the lower bound of its keys. Reads the
        branches alone. Raises Torn, OSError.
        """
        stack = [(tree.root, 1, b"")] if tree.root is not None else []
        while stack:
            number, depth, low = stack.pop()
            if depth == tree.depth:
                yield number, low
                continue
            below = self.file.children(number, self.file.page(number), self.meta.last_page)
            bounds = [low, *(key for _, key in below[1:])]
            first = max(0, bisect.bisect_right(bounds, start) - 1)
            stack += [(below[at][0], depth + 1, bounds[at]) for at in range(len(below) - 1, first - 1, -1)]

    def _pages_of(self, node: Node) -> int:
        """How many pages a long value has. Raises Torn."""
        if not 2 <= node.page <= self.meta.last_page:
            raise Torn(f"page {node.page} cannot be the start of a long value")
        pages = self.file.check_big(node)
        if node.page + pages > self.meta.last_page + 1:
            raise Torn(f"page {node.page} cannot be the start of a long value")
        return pages

    def _see(self, number: int, pages: int) -> None:
        for each in range(number, number + pages):
            at, bit = each >> 3, 1 << (each & 7)
            if self._seen[at] & bit:
                raise Torn(f"page {each} is in two places")
            self._seen[at] |= bit

    def free_after(self) -> Walk:
        """A walk that knows the pages this one saw, except those of FREE, to check its lists once more."""
        again = Walk(self.file, self.meta)
        for _ in again.leaves(self.meta.free):
            pass
        again._seen = bytearray(mine & ~its for mine, its in zip(self._seen, again._seen, strict=True))
        return again

    def check_free(self, *, claim: bool) -> None:
        """Check the lists of reusable pages. With `claim`, which costs some time for each page, none of them
        may be in a tree that was walked. Raises Torn, OSError.
        """
        for nodes in self.leaves(self.meta.free):
            for node in nodes:
                raw = self.file.value(node)
                words = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
                if not words or words[0] > len(words) - 1:
                    raise Torn("a list of free pages is longer than it can be")
                pages = words[1 : 1 + words[0]]
                if pages and not 2 <= min(pages) <= max(pages) <= self.meta.last_page:
                    raise Torn("a list of free pages names pages that there are not")
                if any(low >= high for high, low in itertools.pairwise(pages)):
                    raise Torn("a list of free pages is not in order")
                for page in pages if claim else ():
                    self._see(page, 1)


def _check_bounds(number: int, keys: list[bytes], low: bytes | None, high: bytes | None) -> None:
    """Raises Torn unless the keys of a leaf are where a search would find them."""
    if keys and ((low is not None and keys[0] < low) or (high is not None and keys[-1] >= high)):
        raise Torn(f"page {number} has keys that belong elsewhere")


def _check_order(number: int, keys: list[bytes], last: bytes | None, tree: Tree, order: int) -> None:
    """Raises Torn unless the keys of a leaf follow those before it."""
    previous = last
    for key in keys:
        if previous is not None:
            before, after = (previous, key) if order == 1 else (key, previous)
            if tree.by_number:
                if len(before) != 8 or len(after) != 8:
                    raise Torn(f"page {number} has a key that is no number")
                ordered = _WORD.unpack(before) < _WORD.unpack(after)
            else:
                ordered = before < after
            if not ordered:
                raise Torn(f"page {number} has keys that are not in order")
        previous = key
