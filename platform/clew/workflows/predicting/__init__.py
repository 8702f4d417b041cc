"""Answers of a trained model: tails and heads, text, frames."""
