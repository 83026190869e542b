from __future__ import annotations

from typing import Any, ClassVar, cast

from gigl_loader.loaders.stream import BatchPipeline


class _Frame(str):
    counters: ClassVar = {"late": 2}
    span: ClassVar = None


class _Transfer:
    def load(self, frame: Any) -> Any:
        return f"tensors of {frame}"


def test_a_frame_goes_to_the_device_is_collated_and_transformed() -> None:
    maker = BatchPipeline(cast("Any", _Transfer()), str.upper)
    assert (
        maker.make(cast("Any", _Frame("a frame")), lambda tensors: f"batch of {tensors}")
        == "BATCH OF TENSORS OF A FRAME"
    )
    assert maker.counted == {"late": 2}
    assert set(maker.seconds) == {"copying", "collating", "transforming"}
    assert all(seconds > 0 for seconds in maker.seconds.values())


def test_without_a_transform_the_batch_is_what_was_collated() -> None:
    maker = BatchPipeline(cast("Any", _Transfer()), None)
    batch = object()
    assert maker.make(cast("Any", _Frame("a frame")), lambda _: batch) is batch
