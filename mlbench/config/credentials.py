"""Texts without secrets, before they go into logs, records, archives and MLflow."""

import re
from itertools import pairwise
from typing import Any, TypeVar

Value = TypeVar("Value")

# Lengths are bounded, or a malicious text of megabytes would take hours. The match is all up to the last @
# before the first slash. If a password has a slash in it, the match goes up to the @ after that. A port,
# which is digits to the next slash, is no password.
_USERINFO = re.compile(r"(?<=://)(?:[^\s/]*@|[^\s/@:]{0,256}:(?!\d+(?:/|$))[^\s@]{0,512}@)")
_SECRET = re.compile(
    r"(?i)([?&;#][\w.-]{0,64}(?:token|secret|passw|pwd|signature|credential|key|sig)[\w.-]{0,64}=)[^&\s#]+"
)
# Addresses without a scheme (user:password@host), settings of a connection (password=...), and headers.
_BARE_USERINFO = re.compile(r"(?<![\w:/@.-])[\w.+-]{1,128}:[^\s:@/]{1,512}@(?=[\w.-]+)")
_PAIR = re.compile(
    r"(?i)(\b(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?token)\s*[=:]\s*)[^\s&;,'\"]+"
)
# Options of a command line, and the keys of Hugging Face, GitHub, GitLab, OpenAI
# and AWS, whose beginnings are fixed.
_OPTION_NAME = (
    r"(?i:(?<![\w-])--(?:token|[\w-]{0,64}?"
    r"(?:password|passwd|secret|(?:api|access|auth|hub|hf)[-_]?(?:key|token))))"
)
_OPTION = re.compile(rf"({_OPTION_NAME}(?:=|[ \t]+))(?:'[^']*'|\"[^\"]*\"|(?!-)[^\s'\"]+)")
_OPTION_ALONE = re.compile(_OPTION_NAME)
_ISSUED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,99}|gh[opsu]_[A-Za-z0-9]{36,255}|github_pat_\w{22,255}|glpat-[\w-]{20,255}"
    r"|sk-[\w-]{32,255}|A(?:KIA|SIA)[A-Z0-9]{16})\b"
)
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}")
# What settings look like: numbers, words, lists and name:value pairs. GPU-8932f937-d72c-... is one, too.
_SETTING = re.compile(r"[\w^.,:;=+{}() -]{0,200}")
_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}")  # letters and digits, as keys have
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|pwd|credential|api_?key|auth")


def without_credentials(value: Value) -> Value:
    """Return a text, or JSON types, with user names and passwords cut out of addresses and secrets as ***."""
    return _redacted(value)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        text = _SECRET.sub(r"\1***", _USERINFO.sub("", value))
        text = _BEARER.sub(r"\1***", _PAIR.sub(r"\1***", _BARE_USERINFO.sub("", text)))
        return _ISSUED.sub("***", _OPTION.sub(r"\1***", text))
    if isinstance(value, dict):
        return {name: _redacted(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    return [
        "***" if isinstance(before, str) and _OPTION_ALONE.fullmatch(before) else _redacted(item)
        for before, item in pairwise([None, *value])
    ]


def setting(name: str, value: str) -> str:
    """Return a variable's value, paths by their last part. *** for what is no setting or may be a secret."""
    plain = re.sub(r"[^\s:,;=]*/(?=[^/\s:,;=]+)", "", value)
    is_secret = _SECRET_NAME.search(name) or _SECRET_NAME.search(plain) or _RANDOM.search(plain)
    return "***" if is_secret or "://" in value or not _SETTING.fullmatch(plain) else plain
