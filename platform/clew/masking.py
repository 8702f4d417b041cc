"""What counts as a secret in a text: no run, log or message of Clew holds it."""

import os
import re

_NAME = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|account|private|shared[-_]?access|"
    r"secret|encryption)[-_]?key(?:[-_]?id)?|client[-_]?secret|connection[-_]?string|session[-_]?id"
)
_QUOTES = r"[\\'\"]"  # also escaped ones, of JSON and of a shell
_VALUE = rf"(?:{_QUOTES}+[^\\'\"\n]+|[^\\'\"\s,;&)\]}}]+)"
_KNOWN = (
    r"gh[opsur]_|github_pat_|glpat-|hf_|sk-|[rs]k_live_|xox[abeoprs]-|npm_|pypi-|dapi|ya29\.|SG\.|"
    r"AIza|AKIA|ASIA|eyJ[\w-]+\.eyJ"
)
SECRETS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*-----|\Z)", "***"),
        # The user part of an address; a password can contain `/` and `@`.
        (r"\b((?!models:)[a-z][\w+.-]*:/{1,2})[^/\s'\"][^\s'\"]*@", r"\1***@"),
        (r"(?<![\w/.-])[\w.+-]+:[^\s:@/'\"]+@(?=[\w-])", "***@"),
        # Values of queries and fragments, such as those of signed addresses.
        (r"([?&#][^=&#\s'\"]+)=[^&#\s'\"]+", r"\1=***"),
        (
            rf"\b((?:proxy-)?authorization|(?:set-)?cookie)({_QUOTES}*\s*[:=]\s*){_QUOTES}*[^\\\n'\"]+",
            r"\1\2***",
        ),
        (r"\b(bearer) [\w.~+/=-]{8,}", r"\1 ***"),
        (rf"({_NAME})({_QUOTES}*\s*[=:]\s*){_VALUE}", r"\1\2***"),
        (rf"(--[\w-]*(?:{_NAME})) +{_VALUE}", r"\1 ***"),
        (rf"(?-i:\b(?:{_KNOWN})[\w.-]{{12,}})", "***"),
    )
)
"""Patterns of secrets and what takes their place."""
_VARIABLE = re.compile(rf"(?:{_NAME})$", re.IGNORECASE)
_FOLDERS = ("PWD", "OLDPWD")
SHORTEST = 8
"""Shortest value of an environment variable that is masked wherever it occurs."""


def masked(text: str) -> str:
    """Return a text with secrets masked, those of this process's environment among them."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and name not in _FOLDERS and _VARIABLE.search(name):
            text = text.replace(value, "***")
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text
