"""Damage good files: every mutation depends only on a seeded random.Random, so that a case can be repeated."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["KINDS", "damage", "spoil_path"]

Rng = random.Random

_DEEP = 100_000
_NUMBERS = (
    b"0", b"-1", b"1", b"-0", b"2", b"255", b"65536", b"-2147483649", b"4294967296", b"9223372036854775808",
    b"1e400", b"-1e999", b"NaN", b"inf", b"1e-400", b"0x10", b"1_000", b"9" * 5000, b"0.1", b"00", b"+1", b"1e2",
)  # fmt: skip
_TEXTS = (
    b"", b'"', b'""', b"'", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1a", b"\r", b"\n\n", b"\x85",
    "\u2028".encode(), "\u202e\u200f".encode(), b"../../../etc/passwd", b"/dev/zero", b"%s%n{0}", b"[bold]x[/]",
    b"=1+1", b"null", b"true", b"image", b"class", b"value", b",", b";", b"\t", b"|", b"a" * 70_000, b"{}", b"[]",
    b"!!python/object/apply:os.system ['exit']", b"&a [*a]", b"\\ud800", b"\xc3", b"<!ENTITY x 'y'>", b"2001-99-99",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 2**31, 2**63, -(2**70), 10**400, 1e308, -1e308, float("nan"), float("inf"), "",
    "0", "\ud800", "a\0b", "../x", "x" * 70_000, [], {}, [[]], [None], {"": None}, [1, "a", None], "NaN", [10**400],
    "\ufeff", "tiny", "crop", "labels", {"label": 10**400}, [[1, 2], [3]], 1.5, "1e999", " ", "-",
)  # fmt: skip


def damage(data: bytes, rng: Rng, name: str = "", others: tuple[bytes, ...] = ()) -> tuple[str, bytes]:
    """One mutation, sometimes a second on top of it: its name, and the bytes it leaves."""
    own = _BY_ENDING.get(Path(name).suffix.lower(), {})
    messages = []
    for _ in range(1 if rng.random() < 0.75 else 2):
        # Half the cases keep the form of a file, and so come further than those that break it.
        table = own if own and rng.random() < 0.5 else KINDS
        kind = rng.choice(sorted(table))
        try:
            data = table[kind](data, rng) if kind != "splice" else _splice(data, rng, others)
        except _Unfit:
            kind, data = "flip bytes", _flip_bytes(data, rng)
        messages.append(kind)
    return " + ".join(messages), data


class _Unfit(Exception):
    """These bytes have not the form that a mutation needs."""


def _place(data: bytes, rng: Rng) -> int:
    return rng.randrange(len(data) + 1)


def _span(data: bytes, rng: Rng) -> tuple[int, int]:
    first = _place(data, rng)
    return first, min(len(data), first + int(2 ** rng.uniform(0, 10)))


def _truncate(data: bytes, rng: Rng) -> bytes:
    return data[: _place(data, rng)]


def _behead(data: bytes, rng: Rng) -> bytes:
    return data[_place(data, rng) :]


def _flip_bits(data: bytes, rng: Rng) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _flip_bytes(data: bytes, rng: Rng) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 3, 16)) if out else 0):
        out[rng.randrange(len(out))] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    return bytes(out)


def _splice(data: bytes, rng: Rng, others: tuple[bytes, ...]) -> bytes:
    other = rng.choice(others) if others else data
    first, last = _span(other, rng)
    at = _place(data, rng)
    return data[:at] + other[first:last] + data[at:]


def _duplicate(data: bytes, rng: Rng) -> bytes:
    first, last = _span(data, rng)
    return data[:last] + data[first:last] * rng.choice((1, 1, 2, 500)) + data[last:]


def _delete(data: bytes, rng: Rng) -> bytes:
    first, last = _span(data, rng)
    return data[:first] + data[last:]


def _insert(data: bytes, rng: Rng) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_TEXTS) + data[at:]


def _noise(data: bytes, rng: Rng) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 64, 4096))) + data[at:]


def _number(data: bytes, rng: Rng) -> bytes:
    actual = list(re.finditer(rb"-?\d+(?:\.\d+)?", data))
    if not actual:
        raise _Unfit
    one = rng.choice(actual)
    return data[: one.start()] + rng.choice(_NUMBERS) + data[one.end() :]


def _nest(data: bytes, rng: Rng) -> bytes:
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"- ", b""), (b"<a>", b"</a>")))
    at, deep = _place(data, rng), rng.choice((50, 2000, _DEEP))
    return data[:at] + opened * deep + (b"1" + closed * deep if rng.random() < 0.7 else b"") + data[at:]


def _encode(data: bytes, rng: Rng) -> bytes:
    text = data.decode("utf-8", "replace")
    code = rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp037", "utf-7"))
    return text.encode(code, "replace")


def _mark(data: bytes, rng: Rng) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b\x08", b"PK\x03\x04", b"\x80\x04")) + data


def _lines(data: bytes, rng: Rng) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 1:
        lines.insert(other, lines[at])
    elif what == 2:
        del lines[at]
    elif what == 3:
        lines[at] = lines[at].rstrip(b"\r\n") + lines[other]
    else:
        lines = [line.rstrip(b"\r\n") + rng.choice((b"\r", b"\r\n", b"\n\n", b"")) for line in lines]
    return b"".join(lines)


def _cell(data: bytes, rng: Rng) -> bytes:
    """Another content in one field of one line."""
    lines = data.splitlines(keepends=True)
    if not lines:
        raise _Unfit
    at = rng.randrange(len(lines))
    parts = re.split(rb"([,;\t| ])", lines[at])
    parts[2 * rng.randrange(len(parts) // 2 + 1)] = rng.choice(_TEXTS + _NUMBERS)
    lines[at] = b"".join(parts)
    return b"".join(lines)


def _json(data: bytes, rng: Rng) -> bytes:
    """Another value, or none, somewhere in a JSON document or in one of its lines."""
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    at = 0
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        at = rng.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except (ValueError, RecursionError):
            raise _Unfit from None
    else:
        lines = [text]
    holder = [document]
    _change(holder, rng)
    # As text without escapes where it can be, so that half characters come through as \\ud800.
    lines[at] = json.dumps(holder[0] if holder else None)
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _change(holder: list[Any], rng: Rng) -> None:
    """Walk down to a random node and change it in place."""
    node: Any = holder
    key: Any = 0
    while True:
        below = node[key]
        if isinstance(below, (dict, list)) and below and rng.random() < 0.8:
            node, key = below, rng.choice(list(below) if isinstance(below, dict) else range(len(below)))
        else:
            break
    what = rng.random()
    if what < 0.6:
        node[key] = rng.choice(_VALUES)
    elif what < 0.75:
        del node[key]
    elif isinstance(node, list):
        node.insert(key, rng.choice((node[key], *_VALUES)))
    else:
        node[rng.choice(("", "x", "id", "labels", "a\0", "\ud800"))] = node[key]


def _yaml(data: bytes, rng: Rng) -> bytes:
    """JSON is YAML: the same changes, on what the file says."""
    import yaml

    try:
        document = yaml.safe_load(data.decode())
    except Exception:  # damaged already, in one of the many ways that YAML has
        raise _Unfit from None
    return _json(json.dumps(document, default=str).encode(), rng)


def _safetensors(data: bytes, rng: Rng) -> bytes:
    """Another header in front of the same tensors: shapes, offsets, types, and what it says of itself."""
    if len(data) < 8:
        raise _Unfit
    (size,) = struct.unpack("<Q", data[:8])
    header = _json(data[8 : 8 + min(size, len(data))], rng)
    reported = len(header) if rng.random() < 0.8 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(header) + 9))
    return struct.pack("<Q", reported) + header + data[8 + size :]


def _sealed(data: bytes, rng: Rng) -> bytes:
    """Other bytes in a binary label file, with a checksum that holds: what a hostile writer would send."""
    content = bytearray(data)
    first = content.find(b", CRC-32 ") + len(b", CRC-32 ")
    if len(content) < first + 8:
        raise _Unfit
    for _ in range(rng.choice((1, 2, 8))):
        size = rng.choice((1, 4, 8))
        place = rng.randrange(len(content) // size) * size
        number = rng.choice((0, 1, 127, 128, -1, -128, 2 ** (8 * size - 1) - 1, rng.randrange(256)))
        content[place : place + size] = (number % 256**size).to_bytes(size, "little")
    crc = zlib.crc32(content[first + 8 :], zlib.crc32(content[:first]))
    content[first : first + 8] = b"%08x" % crc
    return bytes(content)


def _png(data: bytes, rng: Rng) -> bytes:
    """Another content in one chunk, or another order, with checksums that hold."""
    if data[:4] != b"\x89PNG":
        raise _Unfit
    chunks, at = [], 8
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        raise _Unfit
    one, other = rng.randrange(len(chunks)), rng.randrange(len(chunks))
    kind, content = chunks[one]
    what = rng.random()
    if what < 0.6:
        chunks[one] = kind, _flip_bytes(content, rng) if rng.random() < 0.7 else _truncate(content, rng)
    elif what < 0.8:
        chunks[one], chunks[other] = chunks[other], chunks[one]
    else:
        chunks.insert(
            other, (rng.choice((kind, b"tEXt", b"zTXt", b"iCCP", b"acTL", b"fcTL", b"eXIf", b"tRNS")), content)
        )
    packed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return data[:8] + b"".join(packed)


def _onnx(data: bytes, rng: Rng) -> bytes:
    """Another shape, operator, type or piece of metadata in a network that is still one."""
    import onnx

    try:
        model = onnx.load_from_string(data)
    except Exception:  # damaged already, in a way of protobuf's own
        raise _Unfit from None
    graph, what = model.graph, rng.randrange(7)
    if what == 0 and model.metadata_props:
        prop = rng.choice(model.metadata_props)
        prop.value = _json(prop.value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    elif what == 1 and graph.input:
        size = rng.choice(graph.input[0].type.tensor_type.shape.dim)
        size.dim_value = rng.choice((0, 1, -1, 2**31, 7, 64))
    elif what == 2 and graph.output:
        graph.output[0].name = rng.choice(("x", "", "images"))
    elif what == 3 and graph.node:
        rng.choice(graph.node).op_type = rng.choice(("Neg", "Nothing", "", "Loop", "Sqrt"))
    elif what == 4 and graph.initializer:
        tensor = rng.choice(graph.initializer)
        tensor.raw_data = _flip_bytes(tensor.raw_data, rng)
    elif what == 5 and graph.initializer:
        tensor = rng.choice(graph.initializer)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(("../../../etc/passwd", "/dev/zero", "x", "")))
    else:
        model.opset_import[0].version = rng.choice((0, 1, 99999, -1))
    return bytes(model.SerializeToString())


def _parquet(data: bytes, rng: Rng) -> bytes:
    """A sound Parquet file of other columns: other types, names, nulls, lists, no rows at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
        at = rng.randrange(table.num_columns)
        name, rows = table.column_names[at], table.num_rows
        choices: tuple[Callable[[], Any], ...] = (
            lambda: table.set_column(at, name, pa.nulls(rows)),
            lambda: table.set_column(at, name, pa.array([rng.choice(_FLAT) for _ in range(rows)], pa.float64())),
            lambda: table.set_column(at, name, pa.array([["x", None, ""]] * rows)),
            lambda: table.set_column(at, name, pa.array([{"a": [1]}] * rows)),
            lambda: table.set_column(at, name, pa.array([b"\xff\0"] * rows, pa.binary())),
            lambda: table.set_column(at, name, pa.array([True, None] * (rows // 2) + [False] * (rows % 2))),
            lambda: table.set_column(at, name, pa.array(["2001-01-01"] * rows).cast(pa.timestamp("s"))),
            lambda: table.set_column(at, name, pa.array(["x"] * rows).dictionary_encode()),
            lambda: table.set_column(at, rng.choice(("", "image", "\0", "x" * 9000)), table.column(at)),
            lambda: table.remove_column(at),
            lambda: table.append_column(name, table.column(at)),
            lambda: table.slice(0, rng.choice((0, 1))),
            lambda: pa.concat_tables([table] * 50),
            lambda: table.replace_schema_metadata({"classes": "[[1]]", "halflabel": "{}"}),
        )
        out = pa.BufferOutputStream()
        pq.write_table(rng.choice(choices)(), out, compression=rng.choice(("zstd", "snappy", "none", "gzip")))
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError):
        raise _Unfit from None
    return bytes(out.getvalue().to_pybytes())


_FLAT = (0.0, -1.0, 1.0, float("nan"), 1e308, 0.5, 2.0, None)

KINDS: dict[str, Callable[[bytes, Rng], bytes]] = {
    "truncate": _truncate,
    "behead": _behead,
    "flip bits": _flip_bits,
    "flip bytes": _flip_bytes,
    "splice": lambda data, rng: _splice(data, rng, ()),
    "duplicate": _duplicate,
    "delete": _delete,
    "insert": _insert,
    "noise": _noise,
    "number": _number,
    "nest": _nest,
    "encode": _encode,
    "mark": _mark,
    "lines": _lines,
    "empty": lambda data, rng: b"",
    "blank": lambda data, rng: rng.choice((b"\n", b" ", b"\0", b"\n" * 5000, b"\r\n", b"{}", b"[]", b"null", b'""')),
}
_ROWS = {"cell": _cell, "lines": _lines, "number": _number, "duplicate": _duplicate}
_BY_ENDING: dict[str, dict[str, Callable[[bytes, Rng], bytes]]] = {
    ".csv": _ROWS,
    ".tsv": _ROWS,
    ".txt": _ROWS,
    ".json": {"json": _json},
    ".jsonl": {"json": _json, "lines": _lines},
    ".yaml": {"yaml": _yaml, "cell": _cell},
    ".safetensors": {"safetensors": _safetensors},
    ".png": {"png": _png},
    ".onnx": {"onnx": _onnx},
    ".labels": {"sealed": _sealed},
    ".parquet": {"parquet": _parquet},
}


def spoil_path(path: Path, rng: Rng) -> str:
    """Put something else than a file in the place of one: nothing, a folder, a pipe, a device, a link to itself."""
    what = rng.choice(("missing", "folder", "full folder", "pipe", "device", "null", "loop", "self", "dangling"))
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "full folder":
        path.mkdir()
        (path / path.name).write_bytes(b"1\n")
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "missing":
        to = {"device": "/dev/zero", "null": "/dev/null", "loop": "..", "self": path.name, "dangling": "nowhere"}
        path.symlink_to(to[what])
    return what
