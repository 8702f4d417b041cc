"""Categories and predicates of the Biolink Model, and prefixes of identifiers.

`terms.json` contains the names of the model's categories (with their depth below `named thing`) and
predicates, without deprecated ones (https://github.com/biolink/biolink-model, Apache 2.0). Nothing
is downloaded.
"""
