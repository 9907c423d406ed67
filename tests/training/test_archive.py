"""The archive is what `torch.save` would have made, to whoever reads it."""

from __future__ import annotations

import io
import tracemalloc
import weakref
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import serialization

from rti_exp.training import archive
from rti_exp.training.archive import LARGEST, PAGE, Image, UnfitError


def read(image: Image) -> Any:
    """What stands in the image, read back by torch, its checksums looked at."""
    memory, size = image.seal()
    content = bytes(memory[:size])
    assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    return torch.load(io.BytesIO(content), weights_only=True)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def same(first: Any, second: Any) -> bool:
    """Equal trees: types, dtypes, shapes, and bits."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and torch.equal(
                first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8)
            )
        )
    if isinstance(first, dict):
        return set(first) == set(second) and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and first == second


def state(seed: int, **more: Any) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(seed)
    weights = torch.randn(3, 5, generator=numbers)
    return {
        "model": {"embed": weights, "head": weights, "norm": torch.randn(7, generator=numbers).bfloat16()},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(seed)), "moment": torch.randn(5, 3, generator=numbers).T}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.98), "foreach": None, "amsgrad": False, "params": [0]}],
        },
        "format": 3,
        "iteration": seed,
        "config": '{"a": "\u00e9 \U0001f600"}',
        **more,
    }


def test_torch_reads_what_was_filled_in() -> None:
    image = Image()
    image.fill(state(1))
    assert same(read(image), state(1))


def test_tied_weights_stay_one_and_stand_there_once() -> None:
    image = Image()
    image.fill(state(1))
    found = read(image)["model"]
    assert found["embed"].data_ptr() == found["head"].data_ptr()
    # 15 + 15 + 1 numbers of 4 bytes, 7 of 2.
    memory, size = image.seal()
    sizes = {one.filename: one.file_size for one in zipfile.ZipFile(io.BytesIO(memory[:size])).infolist()}
    assert (sizes["archive/data/0"], sizes["archive/data/1"]) == (124, 14)


def test_the_next_state_takes_its_place() -> None:
    image = Image()
    for seed in (1, 2, 300, 70_000, 2**31, 2**40):  # ints that are pickled in other ways
        image.fill(state(seed, other="x" * seed if seed < 99_999 else None))
        assert same(read(image), state(seed, other="x" * seed if seed < 99_999 else None))


def test_a_copy_is_not_changed_by_what_is_trained_on() -> None:
    image, one = Image(), state(1)
    image.fill(one)
    one["model"]["embed"].zero_()
    assert same(read(image), state(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["optimizer"]["state"].update({1: {"step": torch.tensor(1.0)}}),
        lambda one: one["optimizer"]["state"].clear(),
        lambda one: one["optimizer"]["param_groups"][0].update(lr=1e-4),
        lambda one: one["optimizer"]["param_groups"][0].update(amsgrad=0),  # equal to False
        lambda one: one["model"].update(embed=one["model"]["embed"].reshape(5, 3)),
        lambda one: one["model"].update(head=one["model"]["head"] + 1),  # tied no longer
        lambda one: one["model"].update(norm=one["model"]["norm"].float()),
        lambda one: one["model"].pop("norm"),
        lambda one: one.update(model={}),
        lambda one: one.update(other=[1, (None, "a"), torch.ones(2, dtype=torch.int64)]),
    ],
)
def test_another_tree_is_laid_out_anew(change: Any) -> None:
    image, one = Image(), state(1)
    image.fill(one)
    image.seal()
    changed = state(2)
    change(changed)
    image.fill(changed)
    assert same(read(image), changed)
    image.fill(one)
    assert same(read(image), one)


def test_a_state_without_tensors() -> None:
    image = Image()
    for content in ({"iteration": 1}, {"iteration": 2, "model": {}, "optimizer": {}}):
        image.fill(content)
        assert read(image) == content


@pytest.mark.parametrize("moment", ["_template", "_allocate", "copy"])
def test_what_breaks_off_amid_a_fill_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """As a signal would; the next fill, of the same tree or another, is whole."""
    image = Image()
    image.fill(state(1))

    def stopped(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    larger = state(3, other="x" * 100_000, more=[torch.ones(9)])
    with monkeypatch.context() as patched:
        if moment == "_template":
            patched.setattr("rti_exp.training.archive._template", stopped)
        elif moment == "_allocate":
            patched.setattr("rti_exp.training.archive._views", stopped)
        else:
            patched.setattr("rti_exp.training.archive.zip", stopped, raising=False)
        with pytest.raises(KeyboardInterrupt):
            image.fill(larger)
    image.fill(state(2))
    assert same(read(image), state(2))
    image.fill(larger)
    assert same(read(image), larger)


def test_an_allocation_for_a_longer_text_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is the same, but what is pickled beside it does not fit: the old places count no more."""
    image = Image()
    image.fill(state(1))
    with monkeypatch.context() as patched:
        patched.setattr("rti_exp.training.archive._views", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            image.fill({**state(2), "config": "x" * 100_000})
    image.fill(state(2))
    assert same(read(image), state(2))


def test_memory_begins_and_goes_on_in_whole_pages() -> None:
    image = Image()
    for length in (1, 10_000, 100_000):
        image.fill(state(1, other="x" * length))
        memory, size = image.seal()
        assert torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % PAGE == 0
        assert len(memory) >= -(-size // PAGE) * PAGE


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(0),
        torch.ones(3).to_sparse(),
        {"a": torch.ones(1), "b": {1, 2}},
        object(),
        torch.ones(LARGEST // 4 + 1),
        torch.float32,
    ],
    ids=["empty", "sparse", "a set", "an object", "too large", "a dtype"],
)
def test_what_does_not_fit_is_refused_and_the_image_can_go_on(value: Any) -> None:
    image = Image()
    image.fill(state(1))
    with pytest.raises(UnfitError):
        image.fill(state(2, other=value))
    image.fill(state(3))
    assert same(read(image), state(3))


def test_torch_maps_it_from_a_file(tmp_path: Path) -> None:
    image = Image()
    image.fill(state(1))
    memory, size = image.seal()
    (tmp_path / "file.pt").write_bytes(memory[:size])
    assert same(torch.load(tmp_path / "file.pt", weights_only=True, mmap=True), state(1))


@pytest.mark.parametrize("length", [1, 4, 5, 17, 18, 64])
@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_it_where_it_works_out_the_places_of_storages(tmp_path: Path, length: int, mmap: bool) -> None:
    """It can for its own files, whose storages lie elsewhere than here: this one must not pass for such a file."""
    image, one = (
        Image(),
        {"floats": torch.arange(float(length)) + 1, "ints": torch.arange(9), "more": torch.ones(3) > 0},
    )
    image.fill(one)
    memory, size = image.seal()
    (tmp_path / "file.pt").write_bytes(memory[:size])
    with serialization.config.patch("load.calculate_storage_offsets", True):  # pyright: ignore[reportAttributeAccessIssue]
        assert same(torch.load(tmp_path / "file.pt", weights_only=True, mmap=mmap), one)


def test_laying_it_out_takes_one_more_copy_and_no_two() -> None:
    size = 8 * 2**20
    image, weights = Image(), torch.ones(size // 4)
    image.fill({"model": [weights]})
    tracemalloc.start()  # sees Python's memory, not torch's
    try:
        image.fill({"model": [weights, 1]})
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_a_state_that_does_not_fit_leaves_no_memory_behind() -> None:
    image = Image()
    image.fill({"model": torch.ones(8 * 2**18)})
    places = [weakref.ref(image._memory), *map(weakref.ref, image._views)]
    with pytest.raises(UnfitError):
        image.fill({"model": torch.ones(LARGEST // 4 + 1)})
    assert [place() for place in places] == [None, None]
    assert not image._storages


def test_small_records_of_any_length_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that another version of torch may write."""
    real = archive._template

    def longer(*args: Any) -> Any:
        tree, fixed = real(*args)
        return tree, {**fixed, "archive/more": b"x" * 20_000}

    monkeypatch.setattr(archive, "_template", longer)
    image = Image()
    for seed in (1, 2):
        image.fill(state(seed))
        assert same(read(image), state(seed))


def test_another_archive_than_is_known_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: real([content], file))
    with pytest.raises(UnfitError, match="writes another archive than is known here"):
        Image().fill(state(1))
