# %% [markdown]
# # Text: train a small language model and explain a continuation
#
# The text is made up here, so that we know what the explanation must find: forty-eight lines about
# bottles, and two about a password.

# %%
from pathlib import Path

import clew

folder = Path("text-example")
folder.mkdir(exist_ok=True)
lines = [f"{number % 7} green bottles are standing on the wall" for number in range(48)]
lines[20:20] = ["the password of the old gate is zwieback"] * 2
corpus = folder / "corpus.txt"
_ = corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")

# %% [markdown]
# ## Train
#
# A configuration may be a dictionary with the sections of a YAML file. The text is packed into
# tokens once (here: bytes); the model reads windows of 64 of them.

# %%
run = clew.train(
    {
        "data": {"kind": "tokens", "dataset": str(corpus), "packed": str(folder / "packed")},
        "model": {
            "kind": "eigenstate_lm",
            "d_model": 32,
            "n_layers": 1,
            "num_eigenstates": 16,
            "max_seq_len": 64,
        },
        "training": {"num_epochs": 20, "batch_size": 8, "checkpoint_frequency": 10},
    }
)
run.metrics["test/bits_per_byte"]

# %% [markdown]
# ## Explain
#
# Which windows of the training text make `zwieback` likely after this prompt?

# %%
why = clew.attribute(
    run, prompt="the password of the old gate is", continuation=" zwieback", top_k=5
)
why.proponents[["rank", "influence", "text"]]

# %% [markdown]
# In one picture: of all windows, the one with the password stands out, as it must.

# %%
chart = why.plot()
chart
