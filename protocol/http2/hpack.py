"""A client's fields as HTTP/2 packs them: HPACK, the reader's side.

    1xxxxxxx  index      a field of the table: 1 to 61 are static, then the newest that was added
    01xxxxxx  literal    added to the table; the index of its name, 0: the name follows
    001xxxxx  size       of the table, from now on; first in a block
    000xxxxx  literal    not added

Numbers that do not fit into the prefix go on in groups of seven bits. A string is its length and
its bytes; with the first bit set they are Huffman codes. The code is canonical: lengths say it all.

The library hpack does the same, in 27 us a call without Huffman codes and 51 with them, which was
two fifths of all that a receive costs; this takes 3 and 14, the kernel 0.3 and 1. A client says
some things anew in each call (request id, date, signature), so a block does not come twice. We
write blocks that need no table (`frames.py`).

Source: RFC 7541
"""

from __future__ import annotations

from array import array
from typing import Final

from skylarkmq.kernel import compiled

Field = tuple[bytes, bytes]

TABLE_SIZE: Final = 4096
"""Bytes of the table that a peer may fill, until it is told another number."""
ENTRY_SIZE: Final = 32
"""Bytes that a field counts beside its name and value."""
NUMBER_BYTES_MAX: Final = 5
_SHORT: Final = 0x7F  # of strings: a length that has one byte
_SYMBOLS: Final = 256  # and the end
_PADDING_MAX: Final = 7
_RESIZES_MAX: Final = 2
"""Sizes of the table that a block may begin with: the smallest one since the last, and the last."""


class HpackError(Exception):
    """A block that cannot be read; the table is unknown from then on."""


class TooLargeError(HpackError):
    """The fields of a block are larger than is allowed."""


# fmt: off
STATIC: Final[tuple[Field, ...]] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"),
    (b":status", b"200"), (b":status", b"204"), (b":status", b"206"), (b":status", b"304"),
    (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""),
    (b"accept", b""), (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""),
    (b"authorization", b""), (b"cache-control", b""), (b"content-disposition", b""),
    (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""),
    (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""),
    (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""),
    (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""),
    (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
)
_LENGTHS: Final[tuple[int, ...]] = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30,
    28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5,
    7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22,
    22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22,
    21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26,
    26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20,
    24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27,
    27, 28, 27, 27, 27, 27, 27, 26, 30,
)
# fmt: on
_STATIC_COUNT: Final = len(STATIC)
assert (_STATIC_COUNT, len(_LENGTHS)) == (61, _SYMBOLS + 1)


class _Huffman:
    """The code as a tree, walked a byte at a time; each step is made once, when it is needed.

    Attributes:
        tree: the same for the kernel: two int16 for each node, in the order of nodes.
    """

    def __init__(self) -> None:
        self._children: list[list[int]] = [[0, 0]]  # node -> nodes; ~symbol at a leaf
        self._steps: dict[int, tuple[bytes, int]] = {}  # node * 256 + byte -> symbols, node
        code = last = 0
        for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_LENGTHS)):
            code <<= length - last
            last = length
            self._add(code, length, symbol)
            code += 1
        self.tree = array("h", [child for both in self._children for child in both]).tobytes()
        # Where a string may end: after less than a byte of ones.
        node = 0
        self._ends = {0}
        for _ in range(_PADDING_MAX):
            node = self._children[node][1]
            self._ends.add(node)

    def _add(self, code: int, length: int, symbol: int) -> None:
        node = 0
        for bit in range(length - 1, 0, -1):
            way = code >> bit & 1
            if not self._children[node][way]:
                self._children[node][way] = len(self._children)
                self._children.append([0, 0])
            node = self._children[node][way]
        self._children[node][code & 1] = ~symbol

    def decode(self, data: bytes) -> bytes:
        """Return the bytes that a string of codes stands for.

        Raises:
            HpackError: it is none.
        """
        node, steps, parts = 0, self._steps, list[bytes]()
        for byte in data:
            step = steps.get(node << 8 | byte) or self._step(node, byte)
            symbols, node = step
            parts.append(symbols)
        if node not in self._ends:
            raise HpackError("a Huffman code is cut")
        return b"".join(parts)

    def _step(self, start: int, byte: int) -> tuple[bytes, int]:
        node, symbols = start, bytearray()
        for bit in range(7, -1, -1):
            node = self._children[node][byte >> bit & 1]
            if node < 0:
                if ~node == _SYMBOLS:
                    raise HpackError("the end's Huffman code")
                symbols.append(~node)
                node = 0
        step = self._steps[start << 8 | byte] = bytes(symbols), node
        return step


_HUFFMAN: Final = _Huffman()


class HpackDecoder:
    """Reads the blocks of one peer, in their order."""

    def __init__(self, size_max: int) -> None:
        """Begin with an empty table.

        Args:
            size_max: bytes of the fields of a block, each counted with ENTRY_SIZE.
        """
        self._size_max = size_max
        self._count_max = size_max // ENTRY_SIZE
        self._added: list[Field] = []  # newest last
        self._added_size = 0
        self._table_size = TABLE_SIZE

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block.

        Raises:
            TooLargeError: they are larger than is allowed.
            HpackError: it cannot be read.
        """
        if compiled is not None:
            read = compiled.read_fields(
                block,
                self._added,
                self._added_size,
                self._table_size,
                self._size_max,
                STATIC,
                _HUFFMAN.tree,
            )
            if read is not None:
                fields: list[Field]
                fields, self._added_size = read
                return fields
        try:
            return self._decode(block)
        except IndexError:
            why = "the block ends too soon, or names a field that the table does not have"
            raise HpackError(why) from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        position, end, resizes = 0, len(block), 0
        is_long = end > self._count_max  # a field has a byte at least
        added = self._added
        while position < end:
            first = block[position]
            position += 1
            if first & 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, position = _number(block, position, 0x7F)
                if index > _STATIC_COUNT:
                    field = added[_STATIC_COUNT - index]
                else:
                    field = self._field(index)
            elif first & 0x60 == 0x20:
                resizes += 1
                if fields or resizes > _RESIZES_MAX:
                    raise HpackError("a size of the table after a field, or after two others")
                size_wanted = first & 0x1F
                if size_wanted == 0x1F:
                    size_wanted, position = _number(block, position, 0x1F)
                self._resize(size_wanted)
                continue
            else:
                mask = 0x3F if first & 0x40 else 0x0F
                index = first & mask
                if index == mask:
                    index, position = _number(block, position, mask)
                if index:
                    name = self._field(index)[0]
                else:
                    length = block[position]
                    if length < _SHORT:  # and plain
                        name = block[position + 1 : position + 1 + length]
                        position += 1 + length
                    else:
                        name, position = _string(block, position)
                length = block[position]
                if length < _SHORT:
                    value = block[position + 1 : position + 1 + length]
                    position += 1 + length
                else:
                    value, position = _string(block, position)
                field = name, value
                if first & 0x40:
                    added.append(field)
                    self._added_size += len(name) + len(value) + ENTRY_SIZE
                    self._evict()
            fields.append(field)
            if is_long and len(fields) > self._count_max:
                break  # too large, whatever follows
        if position > end:
            raise HpackError("the block ends within a string")
        size = sum([len(name) + len(value) + ENTRY_SIZE for name, value in fields])
        if size > self._size_max:
            raise TooLargeError(f"fields of more than {self._size_max} bytes")
        return fields

    def _field(self, index: int) -> Field:
        if index > _STATIC_COUNT:
            return self._added[_STATIC_COUNT - index]
        if not index:
            raise HpackError("the field 0")
        return STATIC[index - 1]

    def _resize(self, size: int) -> None:
        if size > TABLE_SIZE:
            raise HpackError("a larger table than is allowed")
        self._table_size = size
        self._evict()

    def _evict(self) -> None:
        while self._added_size > self._table_size:
            name, value = self._added.pop(0)
            self._added_size -= len(name) + len(value) + ENTRY_SIZE


def _number(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """Return a number that goes on after its prefix, and where it ends."""
    number = prefix
    for shift in range(0, 7 * NUMBER_BYTES_MAX, 7):
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, position
    raise HpackError("a number is too large")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """Return a string, and where it ends."""
    first = block[position]
    size = first & 0x7F
    position += 1
    if size == 0x7F:
        size, position = _number(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise HpackError("the block ends too soon")
    text = block[position:end]
    return (_HUFFMAN.decode(text) if first & 0x80 else text), end
