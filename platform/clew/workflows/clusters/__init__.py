"""Work on several nodes: who does what, and what happens when one dies."""
