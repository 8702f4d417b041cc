"""Sections `data` and `model` of image-sequence regression."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from clew.config.base import TRAIN_FLAG, Section
from clew.errors import quoted

ArchitectureName = Literal["transformer", "ssm", "gnn", "cnn"]
Size = Annotated[int, Field(ge=1)]
MAX_NODES = 4096
"""Most nodes of the graph of `gnn`; its attention takes the square of this number."""


class ImageSequenceData(Section):
    """Ordered frames with scalars and a target, from HDF5, a Zarr store or NumPy arrays."""

    paths: ClassVar[tuple[str, ...]] = ("path",)
    kind: Literal["image_sequences"] = "image_sequences"
    """Windows of consecutive frames, each with the target of its last frame."""
    name: str | None = None
    """A named data set: a folder `<name>` or a file `<name>.h5` under `$CLEW_DATA`."""
    path: str | None = None
    """Instead of `name`: HDF5 (`.h5`, `.hdf5`, `.nc`), a Zarr store or a folder of arrays."""
    channels: Literal["first", "last"] | None = None
    """Which axis of a frame is the channel axis: `first` (channel, height, width) or `last`
    (height, width, channel). Unset: the axis that is at most a quarter as long as both others; if
    there is no such axis, set this. Frames with two axes have one channel."""
    temporal_frames: Annotated[int, TRAIN_FLAG] = Field(default=5, ge=1)
    """Number of frames in a window."""
    max_gap: float | None = Field(default=None, gt=0)
    """Largest difference of `time` between consecutive frames of a window; unset: 1.5 times the
    file's median difference. A time that is NaN is a gap before and after its frame."""
    windows_cross_groups: bool = False
    """Let a window start in a different group than its last frame. A frame can then be in windows
    of two splits."""
    embargo: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Time from a window's last frame to its target, in units of `time`, or in frames if the data
    has no time. A window is left out if its target is in or beyond frames of another split, so that
    training does not use what another split is tested on. Unset: `target_ahead` of the data, or 0
    if the data does not give it; 0: no window is left out."""
    scalars: tuple[str, ...] | None = None
    """Names of the scalars to use; unset: all scalars in the file."""
    azimuth_scalars: tuple[str, ...] = ()
    """Scalars that are directions in degrees: the model gets their sine and cosine."""
    zenith_scalars: tuple[str, ...] = ()
    """Scalars that are angles from the vertical in degrees: the model gets their cosine."""
    nan_pixels: Literal["refuse", "mean", "mask"] = "refuse"
    """How to treat pixels that are not finite: raise an error (`refuse`), replace them by the
    training mean (`mean`), or also add channels that mark the finite pixels (`mask`)."""
    num_blocks: int | None = Field(default=None, ge=2)
    """Split the frames into this many blocks and use the blocks instead of the file's groups."""
    test_group: str | None = None
    """Group held out for the test; unset: the last group."""
    validation_group: str | None = None
    """Group held out for validation; unset: the group before the test group."""
    hold_out_validation: bool = True
    """Hold out a group for validation. If false, training uses all groups except the test group,
    and `valid/` metrics are computed on the test group. These metrics must not choose anything, so
    `evaluation.every_epochs` must be `training.num_epochs` or more."""
    pixel_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of the noise added to training pixels, in units of the channel's standard
    deviation."""

    @property
    def source(self) -> str:
        return self.name or self.path or ""

    def _check(self) -> None:
        if (self.name is None) == (self.path is None):
            given = "both" if self.name is not None else "neither"
            raise ValueError(
                f"{given} of data.name and data.path given; give exactly one of them: a data set "
                "under $CLEW_DATA, or an HDF5 file or folder of NumPy arrays"
            )
        both = sorted({*self.azimuth_scalars} & {*self.zenith_scalars})
        if both:
            raise ValueError(
                f"{quoted(both[0])} is in azimuth_scalars and zenith_scalars; choose one"
            )
        if self.test_group is not None and self.test_group == self.validation_group:
            raise ValueError(
                f"group {quoted(self.test_group)} is both test_group and validation_group, but the "
                "test group must not choose the model; name two different groups"
            )
        if self.validation_group is not None and not self.hold_out_validation:
            raise ValueError(
                f"validation_group is {quoted(self.validation_group)}, but hold_out_validation is "
                "false; leave one of them out"
            )


class SequenceRegressionModel(Section):
    """A convolutional network for each frame, FiLM by the scalars, and a head over time."""

    kind: Literal["sequence_regression"] = "sequence_regression"
    """Regression from a short sequence of frames."""
    architecture: ArchitectureName = "transformer"
    """The head over time: attention between frames (`transformer`), the mean over frames (`cnn`),
    or one of two experimental heads: eigenstate layers (`ssm`), or attention over a graph of
    patches and times (`gnn`)."""
    channels: tuple[Size, ...] = Field(default=(64, 128, 256), min_length=1)
    """Number of feature maps of each convolution; each halves height and width."""
    normalization: Literal["group", "batch"] = "group"
    """Normalisation after each convolution. Batch statistics are computed over the frames that go
    through the network together (`frames_per_checkpoint`)."""
    norm_groups: int = Field(default=8, ge=1)
    """Number of groups of channels; each group is normalised together."""
    film: bool = True
    """Let scalars modulate the feature maps: x (1 + gamma) + beta. If false, scalars are not
    used."""
    film_hidden: int = Field(default=64, ge=1)
    """Hidden width of the network that computes gamma and beta."""
    temporal_layers: int = Field(default=2, ge=1, le=64)
    """Number of layers of the head over time; `cnn` has none."""
    heads: int = Field(default=4, ge=1)
    """Number of attention heads, and of blocks of the eigenstate layers' resonance matrix."""
    patch_grid: tuple[Size, Size] = (4, 4)
    """Rows and columns of patches into which `gnn` divides a frame; a window has at most 4,096
    patches."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout in the head."""
    predicts: Literal["value", "change"] = "value"
    """Predict the target (`value`), or its difference from the `present` value in the data
    (`change`)."""
    frames_per_checkpoint: int | None = Field(default=None, ge=1)
    """Number of frames that go through the convolutions together in training, and that gradient
    checkpointing recomputes together; unset: the number of windows in the batch."""

    @model_validator(mode="before")
    @classmethod
    def _unfold_architecture(cls, values: Any) -> Any:
        """Also accept `architecture: {name: ...}`."""
        if isinstance(values, dict) and isinstance(values.get("architecture"), dict):
            given = values["architecture"]
            if set(given) == {"name"}:
                return values | {"architecture": given["name"]}
        return values

    @property
    def width(self) -> int:
        return self.channels[-1]

    def check_graph(self, num_frames: int) -> None:
        rows, columns = self.patch_grid
        if self.architecture == "gnn" and num_frames * rows * columns > MAX_NODES:
            raise ValueError(
                f"model.patch_grid is {rows} x {columns} and data.temporal_frames {num_frames}, a "
                f"graph of {num_frames * rows * columns:,} patches; the limit is {MAX_NODES:,}"
            )

    def _check(self) -> None:
        if self.normalization == "group":
            for size in self.channels:
                if size % self.norm_groups:
                    raise ValueError(
                        f"channels {size} is not a multiple of norm_groups {self.norm_groups}; "
                        "choose sizes that divide"
                    )
        if self.architecture != "cnn" and self.width % (2 * self.heads):
            raise ValueError(
                f"the last of channels is {self.width}, not a multiple of 2 x heads = "
                f"{2 * self.heads}; choose sizes that divide"
            )
