"""The test of explanations: train again without facts, and compare with what the scores said."""
