"""Exit code 0 when a URL answers 200 within three seconds, else 1. Standard library only: images have no curl that one can rely on."""

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 3


def main(url: str) -> int:
    """Return 0 when the URL answers 200, else 1."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return int(answer.status != 200)
    except (urllib.error.URLError, OSError):
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
