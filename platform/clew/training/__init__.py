"""The trainer that every task shares: it handles batches and losses, but not graphs or text."""
