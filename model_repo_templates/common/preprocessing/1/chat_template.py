"""Renders the chat template of a model for one user message, or for a list of messages.

A chat template is code from whoever published the model. It runs in Jinja's immutable sandbox, as in transformers, with
three bounds on top that the sandbox lacks: time, characters put out, and the size of what one operation may make. What a
template may use is what transformers gives it; see `apply_chat_template` in
https://github.com/huggingface/transformers/blob/v4.57.0/src/transformers/utils/chat_template_utils.py
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from serving import RequestError

MAX_SECONDS = 2.0
#: Characters written during one rendering, also into variables.
MAX_OUTPUT = 4_000_000
#: Product of the sizes of everything that goes into one operation; no text operation makes more than that.
MAX_OPERATION = 20_000_000


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: names as templates use them, e.g. {"bos_token": "<s>"}.
        system_prompt: a system message put first; empty for none.

    Raises:
        jinja2.TemplateSyntaxError: the text is no valid template.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, Any], system_prompt: str = "") -> None:
        self._environment = _BoundedEnvironment()
        self._template = self._environment.from_string(source)
        self._special_tokens = {name: token for name, token in special_tokens.items() if isinstance(token, str)}
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []

    @classmethod
    def of(cls, tokenizer: Any, folder: Path, *, system_prompt: str) -> ChatTemplate:
        """Return the chat template of a tokenizer: chat_template.jinja first, then the one in its configuration.

        Raises:
            ValueError: there is none; no format is made up.
        """
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else tokenizer.chat_template
        if isinstance(source, dict):
            source = source.get("default")
        if not source:
            raise ValueError(
                f"chat_template is on, and {folder} has none (chat_template.jinja or tokenizer_config.json)"
            )
        return cls(source, special_tokens=tokenizer.special_tokens_map, system_prompt=system_prompt)

    def render(self, text: str) -> str:
        """Return the prompt for one user message, up to where the answer starts.

        Raises:
            RequestError: the template refuses the message, breaks a bound or leaves the sandbox.
        """
        return self._render([*self._system, {"role": "user", "content": text}])

    def render_messages(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for a conversation; the deployment's system message is put in front of one without its own.

        Raises:
            RequestError: as `render`.
        """
        has_system = bool(messages) and messages[0]["role"] == "system"
        return self._render([*([] if has_system else self._system), *messages])

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        self._environment.start()
        try:
            return self._template.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except SecurityError as error:
            raise RequestError("the model's chat template tried something a template may not do") from error
        except (TemplateError, OverflowError, MemoryError, RecursionError, TypeError, ValueError, LookupError) as error:
            raise RequestError(f"the model's chat template failed: {error}") from error


class _BoundError(TemplateError):
    """A template needs more time or memory than one prompt may take."""


class _Instrument(NodeTransformer):
    """Makes a template report every loop step, macro call and piece of output to its environment.

    The reports are attributes of the environment, which a template can neither read nor replace.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._report_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._report_step(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._report_step(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        data = (nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in node.nodes)
        node.nodes = [self._call("bounded_output", part) for part in data]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("bounded_concat", *node.nodes)

    def _report_step(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("bounded_step")))
        return node

    def _call(self, name: str, *arguments: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


class _Generation(Extension):
    """The `{% generation %}` block, which marks answers for training and changes no text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the additions of transformers and the bounds of this module."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self._deadline = math.inf
        self._output_left = MAX_OUTPUT
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _to_json
        self.filters = {name: _bounded(function) for name, function in self.filters.items()}

    def start(self) -> None:
        """Begin a rendering: its time and its output count from here."""
        self._deadline = time.monotonic() + MAX_SECONDS
        self._output_left = MAX_OUTPUT

    def bounded_step(self) -> str:
        """Check the time."""
        if time.monotonic() > self._deadline:
            raise _BoundError(f"it took more than {MAX_SECONDS:g} seconds")
        return ""

    def bounded_output(self, value: Any) -> str:
        """Return a piece of output as text, and count it."""
        text = str(value)
        self._output_left -= len(text)
        if self._output_left < 0:
            raise _BoundError(f"it wrote more than {MAX_OUTPUT} characters")
        return text

    def bounded_concat(self, *values: Any) -> str:
        """Return the values joined as text, as `~` does."""
        pieces = [str(value) for value in values]
        _check_size(sum(map(len, pieces)))
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an arithmetic operation, unless its result could be huge."""
        if operator == "**":
            raise _BoundError("powers are not available")
        if operator == "+":
            _check_size(_size(left) + _size(right))
        else:
            _check_operands(left, right)
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method, unless its result could be huge."""
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is not __self:
            _check_operands(owner, *args, *kwargs.values())
        if getattr(__obj, "__name__", "") in ("format", "format_map"):
            _check_format(owner)
        return super().call(__context, __obj, *args, **kwargs)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Instrument().visit(source).set_environment(self), *args, **kwargs)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_operands(*args, *kwargs.values())
        if function.__name__ == "do_format":
            _check_format(args[0])
        return function(*args, **kwargs)

    return checked


def _size(value: Any) -> int:
    if isinstance(value, int):
        return abs(value) + 1
    return len(value) + 1 if isinstance(value, (str, list, tuple, dict)) else 1


def _check_size(size: int) -> None:
    if size > MAX_OPERATION:
        raise _BoundError(f"one operation could make {size} characters, at most {MAX_OPERATION} are allowed")


def _check_operands(*values: Any) -> None:
    _check_size(math.prod(map(_size, values)))


def _check_format(value: Any) -> None:
    """Refuse a format with a huge width, such as "%99999999d"."""
    if isinstance(value, str) and re.search(r"\d{6}", value):
        raise _BoundError("a format has a huge width")


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
