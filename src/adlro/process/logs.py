"""Logs as JSON, one object in each line, and without a secret in any of them."""

import json
import logging
import re
import sys
import time
from typing import Any, Final, TextIO, final

LOGGER: Final = "adlro"

HIDDEN: Final = "***"

_NAMES: Final = r"(?:[\w-]*(?:token|password|passwd|secret|api[_-]?key|jwt|authorization|cookie|credential)[\w-]*)"
_SECRETS: Final = (
    # user:password@ in an address
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/]*@", re.IGNORECASE), r"\g<keep>:***@"),
    # Authorization: Bearer xyz, and Basic and Digest
    (re.compile(r"\b(?P<keep>Bearer|Basic|Digest)\s+[\w.~+/=-]{4,}", re.IGNORECASE), r"\g<keep> ***"),
    # name=value, name: value, "name": "value"
    (
        re.compile(
            rf"(?P<keep>\b{_NAMES}[\"']?\s*[=:]\s*)(?!(?:Bearer|Basic|Digest)\b)"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"'}\])]+)",
            re.IGNORECASE,
        ),
        r"\g<keep>***",
    ),
    # a JSON web token, wherever it stands
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), HIDDEN),
    # a private key
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
)
_SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)

_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
"""What every log record has; all else was given with `extra`."""

_BREAKS: Final = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON may hold as it is, and some readers take for the end of a line."""

_LONGEST: Final = 20_000
"""Signs of one value; a job's name is data, and may be long."""


def without_secrets(text: str) -> str:
    """The text with *** for everything that looks like a password, a token or a key."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


@final
class JsonLines(logging.Formatter):
    """A log record as one line of JSON: time, level, logger, text, and what was given with `extra`.

    `secrets` are words that must not be shown wherever they stand: those of the config.
    """

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._words = tuple(sorted({word for word in secrets if len(word) >= 4}, key=len, reverse=True))

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": self._hide(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _USUAL and not name.startswith("_"):
                line[name] = self._clean(name, value)
        if record.exc_info:
            line["error"] = self._hide(self.formatException(record.exc_info))
        text = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace").decode()
        return _BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

    def _hide(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, HIDDEN)
        text = without_secrets(text)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

    def _clean(self, name: str, value: Any) -> Any:
        """A value as JSON can say it, without what must not be said."""
        if _SECRET_NAME.fullmatch(name) and value is not None:
            return HIDDEN
        if isinstance(value, bool | int | float) or value is None:
            return value
        if isinstance(value, dict):
            return {self._hide(str(key)): self._clean(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean("", each) for each in value]
        return self._hide(str(value))


def set_up_logs(level: str = "info", secrets: tuple[str, ...] = (), stream: TextIO | None = None) -> logging.Handler:
    """Send every log of this process, also those of libraries, to stderr as JSON; the handler that does it.

    Called again, it takes the place of the one before.
    """
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler.formatter, JsonLines)]:
        root.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(secrets))
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "numba", "matplotlib", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler
