"""What secrets and personal data look like by themselves, wherever they stand: tokens of services, URLs with credentials, keys, addresses.

The prefixes are those that the services document for secret scanning.
"""

from __future__ import annotations

import re
from itertools import pairwise

REDACTED = "[redacted]"
USER, HOST = "[user]", "[host]"
#: Beginnings of tokens of well-known services, and what follows: few other words begin so.
_STRONG = (
    "nvapi-", "gh[opsur]_", "github_pat_", "gl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent)-", "[srp]k-", "[srp]k_(?:live|test)_", "whsec_", "xox[a-z]-", "xapp-", "ya29\\.",
    "do[opr]_v1_", "pypi-", "dckr_(?:pat|oat)_", "shp(?:at|ss|ca|pa)_", "sq0[a-z]{3}-", "r8_", "gsk_", "lin_api_", "figd_", "hv[sbr]\\.", "tskey-", "PMAK-", "sntry[su]_",
    "AIza", "xai-", "pplx-", "tgp_v1_", "wandb_v1_", "AGE-SECRET-KEY-", "rubygems_", "atlasv1\\.", "api_org_", "ATATT3", "EAAC", "LTAI", "SG\\.[A-Za-z0-9]",
)  # fmt: skip
#: Those that are words: only what a token has may follow.
_WEAK = (
    r"hf_[A-Za-z0-9]{16,}", r"npm_[A-Za-z0-9]{24,}", r"key-[0-9a-f]{24,}", r"dapi[0-9a-f]{24,}", r"secret_[A-Za-z0-9]{24,}", r"ph[cx]_[A-Za-z0-9]{16,}", r"(?:jina|ntn|vercel|cfut)_[A-Za-z0-9_]{20,}",
    r"(?:AC|SK)[0-9a-f]{32}", r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA)[A-Z0-9]{12,}",
)  # fmt: skip
#: Parameters of URLs that carry a signature or a key; others are told by their names.
_SIGNED = "sig|signature|key|code|hash|hmac|x-amz-[a-z-]+|x-goog-[a-z-]+|s[evptr]|skoid|sktid|awsaccesskeyid|googleaccessid|expires|policy"
#: Up to the last @ before something that ends a URL: passwords may hold / and @ and :.
_USERINFO = re.compile(r"(?<=://)[^\s\"'<>`]{0,1024}@(?=[^\s@/])")
_LOOKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.S), REDACTED),
    # The beginning lies before the end of a log that was read.
    (re.compile(r"\A(?:[^\n]{0,80}\n){0,2000}?[^\n]{0,80}-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"), REDACTED),
    (_USERINFO, f"{REDACTED}@"),
    (re.compile(r"(?<=[?&;])((?:" + _SIGNED + r")=)[^\s\"'<>&#]+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(://[^\s\"'<>/]*hook[^\s\"'<>/]*/)[^\s\"'<>]+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(://[^\s\"'<>/]{1,255}/(?:[\w.-]{1,64}/){0,8}?[\w.-]{0,64}(?:hook|integration|trigger)[\w.-]{0,64}/)[^\s\"'<>]+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(hooks\.[\w.-]+/|/api/webhooks/|/services/(?=T[A-Z0-9]+/))[^\s\"'<>]+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(?<![A-Za-z0-9])(?:bot)?\d{8,10}:[A-Za-z0-9_-]{30,}"), REDACTED),  # Telegram
    (re.compile(r"\b(?:Bearer|Basic|Negotiate|ApiKey)\s+[^\s\"'<>]{6,}", re.I), REDACTED),
    (re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){1,4}\.?"), REDACTED),
    (re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_STRONG)})[A-Za-z0-9_-]{{8,}}(?:\.[A-Za-z0-9_-]{{8,}}){{0,4}}"), REDACTED),
    (re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_WEAK)})(?![A-Za-z0-9])"), REDACTED),
    (re.compile(r"(?<![\w.-])[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}(?![\w.-])"), REDACTED),  # Discord
    (re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user|--basic-auth)[ =]\s*[\"']?)[^\s:\"']*:[^\s\"']+"), rf"\1{REDACTED}"),
    (re.compile(r"(\b(?:sshpass|docker\s+login|podman\s+login|mysql\w*|helm\s+registry)\b[^\n]{0,200}?\s-p\s?)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)"), rf"\1{REDACTED}"),
    (re.compile(r"(\bidentified\s+by\s+)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(\blogin\s+)\S+(\s+(?:password|account)\s+)\S+", re.I), rf"\1{USER}\2{REDACTED}"),  # .netrc
    (re.compile(r"(\b(?:password|passwd|passphrase|pwd|secret|token|credentials?|api[ _-]?key)\s+(?:(?:is|was|of|for|be)\s+)?)(?=\S*\d)(?=\S*[A-Za-z])[^\s\"'<>]{6,}", re.I), rf"\1{REDACTED}"),
)  # fmt: skip
_PERSONAL: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<![\w.+@-])[\w.+-]{1,64}:[^\s\"'<>@/]{1,128}@(?!sha\d+:)[A-Za-z0-9][\w.-]{0,253}"), f"{REDACTED}@{HOST}"),
    # user@host and mail addresses; recall@10 and image@sha256:... are neither.
    (re.compile(r"(?<![\w.+@/-])[\w.+-]{1,64}@(?!sha\d+:|\d+(?![\w.-]))[A-Za-z0-9][\w-]{0,63}(?:\.[\w-]{1,64}){0,8}"), f"{USER}@{HOST}"),
    (re.compile(r"\b(?:GPU|MIG)-(?:GPU-)?[0-9a-f]{8}-[0-9a-f-]{20,}"), "[gpu]"),
    (re.compile(r"(?:/home|/Users)/[^/\s\"':,;]+"), "~"),
    (re.compile(r"(?<![\w/])/root(?=[/\s\"':,;]|$)"), "~"),
)  # fmt: skip
_SHORTEST_RANDOM = 20
_LONG_WORD = re.compile(r"(?<![A-Za-z0-9+/_-])(?!_Z)[A-Za-z0-9+/_-]{20,}={0,2}(?![A-Za-z0-9+/=_-])")
#: A part of the pairs of neighbours in a random word of letters and digits that are of different kinds, small, capital or digit: 0.62 on
#: average, and below a third in one of a thousand of 24 characters. Names of models and kernels have about a sixth.
_RANDOM = 1 / 3


def redact_looks(text: str) -> str:
    """Return text without what looks like a secret by itself."""
    return _LONG_WORD.sub(_without_random, _apply(_LOOKS, text))


def redact_personal(text: str) -> str:
    """Return text without addresses of people, folders named after them and ids of GPUs."""
    return _apply(_PERSONAL, text)


def holds_secret(value: str) -> bool:
    """Say whether a value has a credential within it: a URL with a password, a token of a service, a private key."""
    return _apply(_LOOKS, value) != value


def passwords_of(value: str) -> list[str]:
    """Return what stands before the @ of URLs, whole and its parts: redis://:hunter2@host has hunter2."""
    found = [match[0].removesuffix("@") for match in _USERINFO.finditer(value)]
    return [part for each in found for part in (each, each.partition(":")[2]) if part]


def _apply(patterns: tuple[tuple[re.Pattern[str], str], ...], text: str) -> str:
    for pattern, instead in patterns:
        text = pattern.sub(instead, text)
    return text


def _without_random(match: re.Match[str]) -> str:
    if _is_random(match[0]):
        return REDACTED
    return "/".join(REDACTED if _is_random(part) else part for part in match[0].split("/"))


def _is_random(word: str) -> bool:
    """Say whether a word has small letters, capitals and digits in no order, as keys have: not a path, a hash, a name."""
    if len(word) < _SHORTEST_RANDOM:
        return False
    kinds = ["a" if each.islower() else "A" if each.isupper() else "0" if each.isdigit() else "" for each in word]
    pairs = [(one, other) for one, other in pairwise(kinds) if one and other]
    if not {"a", "A", "0"} <= set(kinds) or len(pairs) < len(word) * 3 // 4:
        return False
    return sum(one != other for one, other in pairs) >= _RANDOM * len(pairs)
