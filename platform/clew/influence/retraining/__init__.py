"""Tests influence scores: trains without some facts and compares the results with the scores."""
