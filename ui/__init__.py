"""The dashboard: compares runs and reviews explanations, in the browser and without torch."""
