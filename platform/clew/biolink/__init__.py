"""The Biolink Model's words for kinds of things and relations, and prefixes of identifiers.

`terms.json` holds the names of its categories (with their depth below `named thing`) and of its
predicates, without what is deprecated (https://github.com/biolink/biolink-model, Apache 2.0).
Nothing is fetched.
"""
