"""Chat templates: found where models put them, rendered as transformers renders them, and unable to do harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.templates.tiny_tokenizers import byte_level, save
from transformers import AutoTokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot|>" }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if tools is not none %}{{ tools | tojson(indent=4) }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
INST = """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- if loop.last and system_message is defined %}{{- "[INST] " ~ system_message ~ "\\n\\n" ~ message["content"] ~ "[/INST]" }}
    {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
{%- endfor %}
"""
NAMESPACE = """{% set ns = namespace(count=0) %}{% macro show(m) %}<{{ m.role | upper }}>{{ m['content'] }}{% endmacro %}
{% for m in messages %}{% set ns.count = ns.count + 1 %}{{ show(m) }}{% if ns.count > 5 %}{% break %}{% endif %}
{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}{{ "%s-%d" | format("n", ns.count) }}{{ "x" * 3 }}
"""


@pytest.fixture(scope="module")
def chat(shipped: Callable[[str], SimpleNamespace]) -> Any:
    return shipped("preprocessing").chat_template


@pytest.mark.parametrize("system_prompt", ["", "Be kind 🙂\n"])
@pytest.mark.parametrize("template", [CHATML, HEADERS, INST, NAMESPACE], ids=["chatml", "headers", "inst", "namespace"])
@pytest.mark.parametrize("text", ["hi", " <b>é家🙂</b>\n\n'quoted' {{ 1 }} 1234567890 ", ""])
def test_a_prompt_is_what_transformers_makes_of_it(
    chat: Any, tmp_path: Path, template: str, text: str, system_prompt: str
) -> None:
    folder = save(byte_level(), tmp_path / "tokenizer", chat_template=template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    expected = tokenizer.apply_chat_template(
        [*messages, {"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    assert chat.ChatTemplate.of(tokenizer, folder, system_prompt=system_prompt).render(text) == expected


class TestWhereItIs:
    @pytest.fixture
    def render(self, chat: Any) -> Callable[[Path], str]:
        def render(folder: Path) -> str:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            return str(chat.ChatTemplate.of(tokenizer, folder, system_prompt="").render("hi"))

        return render

    def test_the_file_is_found(self, render: Callable[[Path], str], tmp_path: Path) -> None:
        save(byte_level(), tmp_path)
        (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
        assert render(tmp_path) == "file hi"

    def test_the_file_wins_over_the_configuration(self, render: Callable[[Path], str], tmp_path: Path) -> None:
        save(byte_level(), tmp_path, chat_template="inline")
        (tmp_path / "chat_template.jinja").write_text("file")
        assert render(tmp_path) == "file"

    def test_of_several_named_ones_the_default_is_taken(self, render: Callable[[Path], str], tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
        save(byte_level(), tmp_path, chat_template=named)
        assert render(tmp_path) == "default"

    def test_without_one_no_format_is_made_up(self, preprocessing: Callable[..., Any], tmp_path: Path) -> None:
        save(byte_level(), tmp_path)
        with pytest.raises(ValueError, match="chat_template is on"):
            preprocessing(tmp_path, chat_template="true")


#: Templates that try to get out, to stay for ever, or to take all memory.
ATTACKS = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "append": "{{ messages.append(1) }}",
    "range": "{% for x in range(10**9) %}x{% endfor %}",
    "plain range": "{% for x in range(1000000000) %}x{% endfor %}",
    "loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "letters": "{% set s = 'x' * 1000 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "multiply": "{{ 'x' * 100000000000 }}",
    "list": "{{ ([1] * 100000000000) | length }}",
    "power": "{{ 9 ** 99999999 }}",
    "double": "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "join": "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "variable": "{% set v %}{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}{{ v }}",
    "justify": "{{ 'x'.ljust(100000000000) }}",
    "center": "{{ 'x' | center(100000000000) }}",
    "replace": "{{ ('x' * 9999).replace('x', 'x' * 9999) }}",
    "percent": "{{ '%99999999999d' % 1 }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "format filter": "{{ '%99999999999d' | format(1) }}",
    "own refusal": "{{ raise_exception('not this one') }}",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("source", ATTACKS.values(), ids=ATTACKS)
def test_a_template_that_would_do_harm_is_a_clear_error_of_its_request(chat: Any, source: str) -> None:
    template = chat.ChatTemplate(source, special_tokens={})
    with pytest.raises(chat.RequestError, match="the model's chat template") as caught:
        template.render("hi")
    assert "<class" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_bare_class_shows_nothing(chat: Any) -> None:
    assert chat.ChatTemplate("[{{ ''.__class__ }}]", special_tokens={}).render("hi") == "[]"


def test_the_next_request_is_served_after_a_bound_was_broken(chat: Any) -> None:
    template = chat.ChatTemplate(
        "{% if messages[0].content == 'bad' %}{{ 'x' * 99999999999 }}{% endif %}ok", special_tokens={}
    )
    with pytest.raises(chat.RequestError):
        template.render("bad")
    assert template.render("good") == "ok"


def test_a_long_message_is_no_attack(chat: Any) -> None:
    template = chat.ChatTemplate("{{ messages[0].content.replace('a', 'b') | trim }}", special_tokens={})
    assert template.render("a" * 500_000) == "b" * 500_000


def test_the_author_s_refusal_reaches_the_client(chat: Any) -> None:
    with pytest.raises(chat.RequestError, match="the model's chat template failed: roles must alternate"):
        chat.ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={}).render("hi")


def test_the_prompt_of_the_model_is_the_rendered_template(preprocessing: Callable[..., Any], tmp_path: Path) -> None:
    from tests.unit.templates import triton_stub
    from tests.unit.templates.tiny_tokenizers import byte_ids

    folder = save(byte_level(), tmp_path, chat_template="{{ messages[0].content }}|{{ messages[1].content }}<tool>")
    model = preprocessing(folder, chat_template="true", system_prompt="be\nkind")
    [response] = model.execute([triton_stub.request({"QUERY": [["hi"]], "REQUEST_OUTPUT_LEN": [[1]]})])
    assert response.values()["INPUT_ID"] == [[*byte_ids("be\nkind|hi"), 258]]
