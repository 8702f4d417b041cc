# %% [markdown]
# # Image sequences: predict a number from frames and explain it
#
# Clew reads frames from an HDF5 file or from a folder of NumPy arrays. Here the frames are made up:
# their brightness rises and falls, and the target is its level.

# %%
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

import clew

folder = Path("frames-example")
folder.mkdir(exist_ok=True)
generator = np.random.default_rng(0)
num_groups, num_frames = 6, 16
level = np.sin(np.arange(num_groups * num_frames) / 5)
noise = generator.normal(scale=0.1, size=(len(level), 9, 13))
arrays = {
    "images": (level[:, None, None] + noise).astype(np.float32),
    "target": 3.0 + level,
    "group": np.repeat([f"day {number}" for number in range(num_groups)], num_frames),
    "time": np.tile(np.arange(num_frames, dtype=float), num_groups),
}
for name, values in arrays.items():
    np.save(folder / f"{name}.npy", values)
_ = (folder / "sequences.json").write_text('{"unit": "km"}', encoding="utf-8")

# %% [markdown]
# ## Train
#
# A window is four frames; whole groups (here: days) are held out for validation and test, so that
# neighbouring frames do not give the answer away.

# %%
run = clew.train(
    {
        "data": {"kind": "image_sequences", "path": str(folder), "temporal_frames": 4},
        "model": {
            "kind": "sequence_regression",
            "architecture": "cnn",
            "channels": [4, 8],
            "norm_groups": 2,
            "heads": 2,
            "patch_grid": [2, 2],
        },
        "training": {"num_epochs": 10, "batch_size": 8, "checkpoint_frequency": 5},
    }
)
run.metrics["test/mae"]

# %% [markdown]
# ## Explain
#
# Without a frame, the window with the largest error is explained: which training windows are
# behind it?

# %%
why = clew.attribute(run, top_k=5)
why.proponents[["rank", "influence", "group", "last_frame", "target"]]

# %% [markdown]
# `why.plot()` draws these scores as bars. A picture worth sharing is the curve itself: the
# explained window, and on other days the windows that the model learned it from. The larger a
# circle, the higher that window's score.

# %%
curve = pd.DataFrame({"frame": range(len(level)), "km": 3.0 + level})
behind = why.proponents.rename(columns={"last_frame": "frame", "target": "km"})
explained = curve[curve["frame"] == why.report.last_frame]
x, y = alt.X("frame:Q"), alt.Y("km:Q", scale=alt.Scale(zero=False))
chart = alt.layer(
    alt.Chart(curve).mark_line(color="lightgray").encode(x, y),
    alt.Chart(behind).mark_circle(opacity=0.8).encode(x, y, size="influence:Q"),
    alt.Chart(explained).mark_point(size=150, filled=True, color="#D55E00").encode(x, y),
).properties(title=why.report.headline()[0], width=600, height=220)
chart
