"""Tests whether influence scores predict what happens when training leaves some facts out."""
