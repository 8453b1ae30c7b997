"""Defaults shared by the client and the command line."""

from __future__ import annotations

URL = "127.0.0.1:8001"
MODEL = "ensemble"
#: Seconds for a whole answer: generous for a CPU, and still an end.
TIMEOUT_S = 300.0
#: Seconds for the server to answer a question about itself.
CONNECT_TIMEOUT_S = 10.0
MAX_TOKENS = 64
PROMPT = "Explain in a few sentences why the sky is blue."
#: Requests in flight at once in a batch.
CONCURRENCY = 8
#: What gRPC can send at all.
MAX_MESSAGE_BYTES = 2**31 - 1
