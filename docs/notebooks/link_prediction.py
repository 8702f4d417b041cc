# %% [markdown]
# # Link prediction: train, ask, explain
#
# UMLS is a graph of 135 medical concepts and 46 relations between them. It comes with Clew, so
# everything on this page runs as it stands, in about a minute on a laptop without a GPU.

# %%
import clew

# %% [markdown]
# ## Train
#
# `umls` is a preset: a configuration that ships with Clew. It trains for 100 epochs; 10 are enough
# to see how things work. The explanation below sums over checkpoints, here one every 5 epochs.

# %%
run = clew.train("umls", epochs=10, overrides={"training.checkpoint_frequency": 5})
run.metrics["test/mrr"]

# %% [markdown]
# Every value that was recorded is in `run.history`, one row each.

# %%
loss = run.history.query("key == 'train/loss'")
loss[["step", "epoch", "value"]].tail()

# %% [markdown]
# ## Ask
#
# Which concepts does a virus cause? `known` marks answers that are training facts; the others are
# the model's own. A model has probabilities once it has been promoted (`clew promote`).

# %%
model = run.load()
answers = model.predict(head="virus", relation="causes", top_k=10)
answers

# %% [markdown]
# ## Explain
#
# A test fact, which the model has never seen: *virus causes pathologic function*. Which training
# facts made it more likely, and which less likely? The scores are estimates; `why.form` has their
# name, their unit and what one of them says.

# %%
why = clew.attribute(model, [("virus", "causes", "pathologic_function")], top_k=20)
why.form

# %%
why.proponents.head()

# %%
why.opponents.head()

# %% [markdown]
# Many of the strongest facts have the prediction's own relation. These are the others:

# %%
facts = why.proponents
other = facts[facts["relation"] != "causes"]
other.head()

# %% [markdown]
# The same as a chart to share: what speaks for the prediction, and what against it. It is an
# estimate; `why.verify()` takes minutes and says what happens without the strongest facts.

# %%
chart = why.plot()
chart
