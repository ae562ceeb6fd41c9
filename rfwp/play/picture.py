"""A screen of a game as a PNG file, with nothing but zlib."""

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS, _RGB = 8, 2


def png(screen: np.ndarray) -> bytes:
    """Of (height, width, 3) uint8."""
    height, width, _ = screen.shape
    # every line begins with the number of its filter; 0 is none
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = screen.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, _EIGHT_BITS, _RGB, 0, 0, 0)
    # frames are many and small: quick, not tight
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 1)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
