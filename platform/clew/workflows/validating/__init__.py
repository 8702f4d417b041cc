"""Do scores say what training without some facts would do? Trained, measured, kept."""
