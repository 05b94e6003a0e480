"""Reduces a CUDA library to the machine code of one GPU, so that it can travel.

A fat binary is a header (magic, version, header size, size of all entries) and an entry per GPU. An entry is a header and
a payload. At byte 0 of its header is the kind (1: PTX, 2: machine code), at 4 the header's size, at 8 the payload's size,
at 28 the architecture. Unneeded payloads become zeros, which compress to nothing; all sizes and places stay. The code in
__nv_relfatbin was needed to link the library and is not loaded.
"""
import struct

MAGIC = b"\x50\xed\x55\xba"
SECTION, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"


def sections(data):
    """{name: (begin, end)} of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = heads[names][4]
    return {bytes(data[strings + h[0]:data.index(b"\0", strings + h[0])]).decode(): (h[4], h[4] + h[5]) for h in heads}


def entries(data, begin, end):
    """(kind, architecture, begin and end of the payload) of every entry in a section."""
    at = begin
    while (at := data.find(MAGIC, at, end)) >= 0:
        version, head, whole = struct.unpack_from("<HHQ", data, at + 4)
        if (version, head) != (1, 16) or at + head + whole > end:
            raise ValueError(f"a fat binary of version {version} at byte {at} is not of the known form")
        entry, at = at + head, at + head + whole
        while entry < at:
            kind, _, head, size = struct.unpack_from("<HHIQ", data, entry)
            yield kind, struct.unpack_from("<I", data, entry + 28)[0], entry + head, entry + head + size
            entry += head + size


def keep_only(data, architecture):
    """Empties all entries of `data`, a bytearray with a library, but the machine code for `architecture` (90: Hopper).
    Returns the bytes of machine code that are left."""
    found, left = sections(data), 0
    for section in (SECTION, RELOCATABLE):
        for kind, of, begin, end in entries(data, *found.get(section, (0, 0))):
            if section == SECTION and kind == 2 and of == architecture:
                left += end - begin
            else:
                data[begin:end] = bytes(end - begin)
    if not left:
        raise ValueError(f"no machine code for sm_{architecture} in it")
    return left
