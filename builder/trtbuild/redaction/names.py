"""Which names mean that the value beside them is a secret: of environment variables, keys of files, options and headers alike."""

from __future__ import annotations

import re
from functools import lru_cache

#: Names of the shell's folders, which only look like passwords.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"[^A-Z0-9]+")
#: Kinds of keys that open something, also in the middle of a name and without a separator: APIKEY, SSH_KEY_FILE.
_KEYS = "API|ACCESS|PRIVATE|PRIV|SECRET|AUTH|LICENSE|CLIENT|SIGNING|ENCRYPTION|MASTER|SSH|DEPLOY|ACCOUNT|STORAGE|SUBSCRIPTION|SERVICE|ADMIN"
_DATABASES = "DATABASE|DB|REDIS|MONGO|MONGODB|POSTGRES|POSTGRESQL|MYSQL|AMQP|RABBITMQ|BROKER|CELERY|SENTRY"
#: What is looked for in "_WORD_WORD_", the name in capitals.
_SECRET = re.compile(
    "|".join(
        (
            r"PASS(?:WORD|WRD|WD|PHRASE|CODE)", r"(?<!COM)(?<!BY)PASS\d*_", r"PWD\d*_",
            r"SECRETS?\d*(?:_|KEY|ID|VALUE)",
            r"CREDENTIAL", r"(?<!SA)CREDS?\d*_", r"_CRED(?!IT|IB|O)",
            rf"(?:{_KEYS})_?KEYS?(?:ID)?_", r"[A-Z0-9]_KEY(?:_ID|_FILE|_DATA|_PEM|_BASE64|_B64|_\d+|\d+)?_$",
            r"(?:API|ACCESS|AUTH|REFRESH|SESSION|BEARER|SECURITY|SERVICE|_ID)_?TOKENS?_", r"TOKEN(?:_?(?:VALUE|FILE|PATH|DATA|\d+))?_$",
            r"_O?AUTH\d?_(?:CONFIG_|HEADER_|VALUE_|STRING_|CODE_|DATA_)?$", r"AUTHORIZATION_", r"_BEARER_", r"COOKIES?_", r"_PATS?_", r"_JWTS?_", r"WEBHOOKS?_", r"_DSN_", r"_T?OTP_", r"_SIG_", r"_SAS_",
            r"_CONN(?:ECTION)?_?STR(?:ING)?_", r"_SEED_PHRASE_|MNEMONIC_", r"SESSION_?ID_", r"_SID_", r"_NETRC_", r"_AWS_",
            rf"_(?:{_DATABASES})_UR[IL]_",
        )
    )
)  # fmt: skip
#: Names of tokenizers, limits and measurements, in which a token is a piece of text; and keys that open nothing.
_HARMLESS = re.compile(
    r"_(?:INPUTS|CACHE|PRIMARY|FOREIGN|SORT|PUBLIC|PARTITION|QUERY|PAST|BLOCK)_KEYS?_$|"
    r"_(?:BOS|EOS|PAD|UNK|SEP|CLS|MASK|IMAGE|IMG|AUDIO|VIDEO|VISION|BOI|EOI|SPECIAL|ADDED|END|START|STOP|FIRST|NEXT|LAST|PER|OUTPUT|INPUT|PROMPT|DRAFT|"
    r"ACCEPTED|GENERATED|CONTEXT|DECODER|BEGIN|TIME|THINK|TOOL|EACH|ONE|SINGLE|NEW)_TOKENS?_|"
    r"TOKENS?_(?:IDS?|PER|LENGTHS?|TYPES?|LIMITS?|COUNTS?|BUDGET|RANGE|STR|IDX|INDEX|POS|POSITIONS?|EMBEDDINGS?|LOGITS|LOGPROBS?|MASK|GENERATION)_"
)
#: What names of texts' tokens do not have besides.
_NOT_HARMLESS = re.compile(r"_(?:API|ACCESS|AUTH|REFRESH|SESSION|BEARER|SECURITY|HF|GITHUB|GH|HUB)_")


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Say whether a name means a credential: HF_TOKEN, MYSQL_PWD, PGPASS, apiKey, x-api-key, GITHUB_PAT do; eos_token, max_tokens, PWD do not."""
    if name in _FOLDERS:
        return False
    words = f"_{_NO_WORD.sub('_', _CAMEL.sub('_', name).upper()).strip('_')}_"
    if _HARMLESS.search(words) and not _NOT_HARMLESS.search(words):
        return False
    # HF_TOKEN_OF_BOB is a variable; token_dispatcher is a setting.
    return _SECRET.search(words) is not None or (name.isupper() and "_TOKEN_" in words)
