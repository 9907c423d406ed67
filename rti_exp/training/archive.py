"""Tensors and plain values as a file that `torch.load(..., weights_only=True)` reads, made anew at little cost.

The format is that of `torch.save`: a zip archive without compression, the tree of values pickled in data.pkl, and each
storage beside it as data/0, data/1 and so on. `torch.save` pickles each tensor and writes each storage anew every time.
Here all tensors of a dtype are views of one storage, which lies in memory where the file has it. As long as the tree
stays as it was but for the numbers in its tensors, the next state is copied there, and only checksums are made anew.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PAGE = 4096
"""The file in memory begins at a multiple of it: a device can take it from there (`rti_exp.runs.disk.write_whole`)."""
LARGEST = 64 * 2**20
"""Bytes of tensors beyond which another copy in memory is dearer than what it saves."""
_ALIGNMENT = 64
_DATA = "archive/data/"
_LEFT_OUT = ("archive/.data/serialization_id", "archive/.format_version", "archive/.storage_alignment")
"""Records that may be missing: one tells files apart, and two say that where a storage lies follows from the sizes of
those before it, as in files of `torch.save`. Here it does not; torch would read other numbers without a word."""


class UnfitError(Exception):
    """A state that is no tree of plain values and dense tensors, or too large; `torch.save` may take it."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A file in the archive, and where its local header begins."""

    name: bytes
    header: int
    content: memoryview

    @property
    def data(self) -> int:
        """Where its content begins."""
        unpadded = self.header + _LOCAL.size + len(self.name) + 4
        return unpadded + -unpadded % _ALIGNMENT


class Image:
    """One file, kept in memory to be filled anew. After `fill` comes `seal`, which another thread may do."""

    def __init__(self) -> None:
        self._layout: list[Any] = []
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: list[Tensor] = []
        self._storages: list[_Record] = []
        self._tree = b""
        self._fixed: dict[str, bytes] = {}
        self._pickled = b""

    @torch.no_grad()
    def fill(self, state: Mapping[str, Any]) -> None:
        """Copy the state.

        Args:
            state: Plain values (text, numbers, None), tensors, and trees of them (mappings, lists, tuples) by name.

        Raises:
            UnfitError: it holds something else, an empty tensor, or more than `LARGEST` bytes.
        """
        trees = {name: value for name, value in state.items() if isinstance(value, Mapping | list | tuple | Tensor)}
        plain = {name: value for name, value in state.items() if name not in trees}
        _Tensors().layout(plain)  # refuses what is not plain
        found = _Tensors()
        layout = found.layout(trees)
        if layout != self._layout:
            self._forget()
            self._tree, self._fixed = _template(trees, found)
        self._pickled = _with_items(self._tree, plain)
        if not self._views or self._end + self._rest > len(self._memory):
            self._allocate(found.tensors)
            self._layout = layout
        for view, tensor in zip(self._views, found.tensors, strict=True):
            view.copy_(tensor)

    def seal(self) -> tuple[memoryview, int]:
        """The whole file with its checksums, and its size; the memory goes on for a page. Good until `fill`."""
        memory = self._memory.numpy().data
        entries = b""
        for record in self._storages:
            header, entry = _headers(record)
            memory[record.header : record.data] = header
            entries += entry
        tail = b""
        for name, content in {"archive/data.pkl": self._pickled, **self._fixed}.items():
            header, entry = _headers(_Record(name.encode(), self._end + len(tail), memoryview(content)))
            tail += header + content
            entries += entry
        count = len(self._storages) + 1 + len(self._fixed)
        tail += entries + _END.pack(b"PK\5\6", 0, 0, count, count, len(entries), self._end + len(tail), 0)
        size = self._end + len(tail)
        memory[self._end : size] = tail
        return memory, size

    @property
    def _end(self) -> int:
        """Where the storages end."""
        last = self._storages[-1] if self._storages else None
        return 0 if last is None else last.data + len(last.content)

    @property
    def _rest(self) -> int:
        """Room for all that comes after the storages, up to the end of its page."""
        return len(self._pickled) + sum(map(len, self._fixed.values())) + 2 * PAGE

    def _forget(self) -> None:
        """Give the memory back, also should what follows break off."""
        self._layout, self._views, self._storages = [], [], []
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _allocate(self, tensors: Sequence[Tensor]) -> None:
        """Memory for storages and all else, with room to spare, and the tensors' places in it."""
        self._forget()
        sizes = _storage_sizes(tensors)
        spare = len(self._pickled) + self._rest
        # Zeros: what comes after the file may be written with it, and cut off again.
        whole = torch.zeros(sum(sizes.values()) + len(sizes) * 4 * _ALIGNMENT + spare + PAGE, dtype=torch.uint8)
        self._memory = whole[-whole.data_ptr() % PAGE :]
        views = {}
        for number, (dtype, size) in enumerate(sizes.items()):
            record = _Record(f"{_DATA}{number}".encode(), self._end, memoryview(b""))
            place = self._memory[record.data : record.data + size]
            self._storages.append(_Record(record.name, record.header, place.numpy().data))
            views[dtype] = _views(place.view(dtype), tensors)
        self._views = [next(views[tensor.dtype]) for tensor in tensors]


class _Tensors:
    """The tensors of a tree, in its order; one that stands there twice (tied weights) once."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.places: list[int] = []
        """Of each tensor in the tree, its index in `tensors`."""
        self._known: dict[int, list[int]] = {}
        """Of each address, the indexes of the tensors that begin there."""

    def layout(self, value: Any) -> list[Any]:
        """All of the tree but for the numbers in its tensors, to be compared."""
        layout: list[Any] = []
        self._walk(value, layout.append)
        return layout

    def _walk(self, value: Any, note: Any) -> None:
        if isinstance(value, Tensor):
            place = self._place(value)
            note((place, value.dtype, value.shape))
        elif isinstance(value, Mapping):
            note((dict, len(value)))
            for key, item in value.items():
                note((type(key), key))
                self._walk(item, note)
        elif type(value) in (list, tuple):
            note((type(value), len(value)))
            for item in value:
                self._walk(item, note)
        elif type(value) in (bool, int, float, str, type(None)):
            note((type(value), value))
        else:
            raise UnfitError(f"a value of type {type(value).__name__}")

    def _place(self, tensor: Tensor) -> int:
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or not tensor.numel():
            raise UnfitError(f"a {type(tensor).__name__} of layout {tensor.layout} and shape {tuple(tensor.shape)}")
        address, place = tensor.data_ptr(), len(self.tensors)
        known = self._known.setdefault(address, [])
        for other in known:
            if _is_same(self.tensors[other], tensor):
                place = other
                break
        else:
            known.append(place)
            self.tensors.append(tensor)
        self.places.append(place)
        return place


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors that begin at one address are one."""
    return (one.dtype, one.shape, one.stride(), one.device) == (other.dtype, other.shape, other.stride(), other.device)


def _storage_sizes(tensors: Sequence[Tensor]) -> dict[torch.dtype, int]:
    """Bytes of the tensors of each dtype, in the order in which they come first.

    Raises:
        UnfitError: more than `LARGEST` in all.
    """
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel() * tensor.itemsize
    if sum(sizes.values()) > LARGEST:
        raise UnfitError(f"{sum(sizes.values()):,} bytes of tensors")
    return sizes


def _views(storage: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """A place in a one-dimensional storage for each of the tensors of its dtype."""
    own = [tensor for tensor in tensors if tensor.dtype == storage.dtype]
    parts = storage.split([tensor.numel() for tensor in own])
    return iter([part.view(tensor.shape) for part, tensor in zip(parts, own, strict=True)])


def _template(trees: Mapping[str, Any], found: _Tensors) -> tuple[bytes, dict[str, bytes]]:
    """What `torch.save` makes of the tree with one storage for each dtype: data.pkl, and its other small records.

    Raises:
        UnfitError: it makes something else of it than is known here.
    """
    sizes = _storage_sizes(found.tensors)
    storages = {dtype: torch.zeros(size, dtype=torch.uint8) for dtype, size in sizes.items()}
    for number, storage in enumerate(storages.values()):
        storage[0] = number
    parts = {dtype: _views(storage.view(dtype), found.tensors) for dtype, storage in storages.items()}
    views = [next(parts[tensor.dtype]) for tensor in found.tensors]
    buffer = io.BytesIO()
    torch.save(_replaced(trees, iter([views[place] for place in found.places])), buffer)
    with zipfile.ZipFile(buffer) as archive:
        names = archive.namelist()
        data = [(archive.getinfo(name).file_size, _first(archive, name)) for name in sorted(names) if _is_data(name)]
        fixed = {name: archive.read(name) for name in names if not _is_data(name) and name not in _LEFT_OUT}
    tree = fixed.pop("archive/data.pkl", b"")
    as_expected = data == [(size, bytes([number])) for number, size in enumerate(sizes.values())]
    if not as_expected or not tree.startswith(b"\x80\x02}") or not tree.endswith(pickle.STOP):
        raise UnfitError(f"torch {torch.__version__} writes another archive than is known here")
    return tree, fixed


def _is_data(name: str) -> bool:
    return name.startswith(_DATA)


def _first(archive: zipfile.ZipFile, name: str) -> bytes:
    """The first byte of a record."""
    with archive.open(name) as file:
        return file.read(1)


def _replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The tree with these tensors in place of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _replaced(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, tensors) for item in value)
    return value


def _with_items(pickled: bytes, items: Mapping[str, Any]) -> bytes:
    """A pickled dict with more items: what is on the pickle machine's stack at its end is the dict."""
    added = [pickle.dumps(one, protocol=2)[2:-1] for item in items.items() for one in item]
    return b"".join((pickled[:-1], pickle.MARK, *added, pickle.SETITEMS, pickle.STOP))


_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_JANUARY_1980 = 0x21


def _headers(record: _Record) -> tuple[bytes, bytes]:
    """A record's local header, padded up to its content, and its entry in the archive's directory."""
    checksum, size, name = zlib.crc32(record.content), len(record.content), record.name
    padding = record.data - record.header - _LOCAL.size - len(name)
    extra = struct.pack("<2sH", b"FB", padding - 4) + bytes(padding - 4)
    common = (0, 0, 0, _JANUARY_1980, checksum, size, size, len(name))
    local = _LOCAL.pack(b"PK\3\4", 0, *common, padding) + name + extra
    entry = _ENTRY.pack(b"PK\1\2", 0, 0, *common, 0, 0, 0, 0, 0, record.header) + name
    return local, entry
