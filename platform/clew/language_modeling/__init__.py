"""Language modeling: text, tokens, the eigenstate model, its loss and generation."""
