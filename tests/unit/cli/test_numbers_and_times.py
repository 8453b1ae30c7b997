"""Numbers, shares and times as options: nothing that is not finite gets through, and nothing is ignored without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from trtbuild.cli.group import VERBS
from trtbuild.cli.group import cli as group
from trtbuild_client.durations import LONGEST_S, parse_ns
from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.settings import Prompts
from trtbuild_client.load.slo import parse
from trtbuild_client.options import Number, duration, name_value

Cli = Callable[..., tuple[int, str, str]]
#: Takes any text, whose numbers are no numbers yet.
_TEXTS = (click.types.StringParamType, click.Path, click.Choice)
_NO_NUMBERS = ("nan", "NaN", "inf", "-inf", "Infinity", "1e999")


def _options() -> Iterator[Any]:
    """Yield (verb, option) of all options whose value is more than a text or a switch."""
    for verb in VERBS:
        command = group.get_command(click.Context(group), verb)
        assert command is not None
        for option in command.params:
            is_text = isinstance(option.type, _TEXTS) and option.callback is None
            is_flag = isinstance(option, click.Option) and option.is_flag
            if not (is_text or is_flag or getattr(option.type, "func", None) is name_value):
                yield pytest.param(verb, option, id=f"{verb} {option.opts[0]}")


@pytest.mark.parametrize(("verb", "option"), list(_options()))
def test_no_option_takes_what_is_no_finite_number(verb: str, option: click.Parameter) -> None:
    is_own = isinstance(option.type, Number)
    assert is_own or not isinstance(option.type, (click.types.FloatParamType, click.FloatRange))
    context = click.Context(click.Command(verb))
    for text in _NO_NUMBERS:
        value = (text,) if option.multiple else text
        with pytest.raises(click.BadParameter) as caught:
            option.process_value(context, value)
        assert text in caught.value.message or option.name == "mounts"


def test_the_walk_finds_the_options() -> None:
    names = {f"{each.values[0]} {each.values[1].opts[0]}" for each in _options()}
    known = "bench --rate|bench --slo|probe --max-error-rate|serve --grace|mock --ttft|convert --memory|evaluate --max-mean-kl"
    assert set(known.split("|")) - names == {"bench --slo"}  # which is parsed later, and tested below


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "a", "b", "--least-effect", "nan"),
        ("bench", "--max-error-rate", "nan"),
        ("bench", "--max-client-cpu", "nan"),
        ("bench", "--speed", "inf"),
        ("bench", "--rate", "1,nan"),
        ("bench", "--ramp", "1:nan"),
        ("bench", "--ramp", "1:" + "9" * 400),
        ("bench", "--input-tokens", "128:nan"),
        ("bench", "--input-tokens", "9" * 5000),
        ("bench", "--slo", "ttft.p95=nan"),
        ("bench", "--slo", "ttft.p95=infs"),
        ("bench", "--slo", "ttft.pnan=5ms"),
        ("bench", "--slo", "ttft.p95=" + "9" * 400 + "s"),
        ("bench", "--param", "temperature=NaN"),
        ("bench", "--param", "other=[1, -Infinity]"),
        ("bench", "--param", "other=1e999"),
        ("probe", "--max-error-rate", "nan"),
        ("probe", "--temperature", "nan"),
        ("generate", "x", "--top-p", "inf"),
        ("mock", "--ttft", "lognormal:20ms,nan"),
        ("mock", "--ttft", "lognormal:20ms," + "9" * 400),
        ("mock", "--ttft", "list:1ms,infms"),
        ("mock", "--tokens-per-response", "9" * 400),
        ("mock", "--fault", "reset=nan"),
        ("convert", ".", "--memory", "9" * 400),
        ("evaluate", ".", "--max-mean-kl", "nan"),
        ("serve", ".", "--grace", "nan"),
        ("reload", "m", "--repository", ".", "--from", ".", "--timeout", "inf"),
        ("sensitivity", ".", "--bits-per-weight", "inf"),
    ],
)
def test_what_is_not_finite_is_a_fault_of_who_typed_it(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and "Traceback" not in err


@pytest.mark.parametrize("text", ["nan", ".nan", ".inf", "-.inf"])
def test_a_file_takes_no_number_that_is_not_finite(cli: Cli, tmp_path: Path, text: str) -> None:
    file = tmp_path / "trtbuild.yaml"
    file.write_text(f"model: {{path: .}}\naccuracy: {{max_mean_kl: {text}}}\n")
    code, _, err = cli("plan", file)
    assert code == 2 and "max_mean_kl" in err


def test_the_range_is_named(cli: Cli) -> None:
    assert "0<=x<=1" in cli("compare", "a", "b", "--least-effect", "nan")[2]
    assert "0<=x<=1" in cli("compare", "a", "b", "--least-effect", "2")[2]
    assert "x>0" in cli("bench", "--speed", "inf")[2]


@pytest.mark.parametrize(
    ("text", "time_s"),
    [("5", 5), ("0.5", 0.5), (".5s", 0.5), ("500ms", 0.5), ("200us", 2e-4), ("7ns", 7e-9), ("2m", 120), ("1h", 3600), ("576h", LONGEST_S)],
)  # fmt: skip
def test_times_are_read_in_every_unit(text: str, time_s: float) -> None:
    assert duration(text) == time_s
    if text[-1].isalpha():
        assert parse(f"ttft.p95={text}")[0].limit_ns == pytest.approx(time_s * 1e9, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1s", "0.1ns", "1d", "577h", "300000000000000", "9" * 400, "1e3", "5 s s"]
)
def test_what_is_no_time_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(click.BadParameter, match="at most 24 days: write 5, 0.5, 5s, 500ms, 200us, 2m or 1h"):
        duration(text)
    assert parse_ns(text) is None


def test_a_plain_number_and_zero_are_taken_where_they_are_said_to_be() -> None:
    assert parse_ns("5", needs_unit=True) is None
    assert parse_ns("0", needs_unit=True, may_be_zero=True) == 0.0 == parse_ns("0ms", may_be_zero=True)


@pytest.mark.parametrize("verb", [("generate", "x"), ("probe",), ("bench",)])
def test_a_timeout_beyond_all_limits_is_refused(cli: Cli, verb: tuple[str, ...]) -> None:
    for url in ("127.0.0.1:1", "http://127.0.0.1:1"):
        for text in ("300000000000000", "9000000000"):
            code, _, err = cli(*verb, "--url", url, "--timeout", text)
            assert code == 2 and "at most 24 days" in err
        assert cli(*verb, "--url", url, "--timeout", "576h")[0] == 1  # nobody listens there


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "--slo", ""), "no objective"),
        (("bench", "--slo", ","), "no objective"),
        (("bench", "--find-capacity"), "--find-capacity without --slo"),
        (("bench", "--find-capacity", "--slo", ""), "no objective"),
        (("bench", "--rate", "5", "--burstiness", "2"), "--burstiness without --arrivals gamma"),
        (("bench", "--arrivals", "gamma"), "--arrivals without an open loop"),
        (("bench", "--rate", "5", "--speed", "2"), "--speed without a trace"),
        (("bench", "--speed", "1"), "--speed without a trace"),
        (("bench", "--rate", "5", "--ramp-up", "1s"), "--ramp-up without a closed loop"),
        (("bench", "--think", "1s"), "--think without turns"),
        (("bench", "--prefix-groups", "2"), "--prefix-groups without --prefix-tokens"),
        (("mock", "--max-queue", "3"), "max_queue=3 without max_concurrency"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = cli(*arguments, *(("--url", "127.0.0.1:1") if arguments[0] == "bench" else ()))
    assert (code, out) == (2, "") and said in err and "hint" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "5", "--arrivals", "gamma", "--burstiness", "2"),
        ("--ramp", "1:5", "--duration", "5s", "--arrivals", "constant"),
        ("--find-capacity", "--slo", "e2e=5s", "--arrivals", "poisson"),
        ("--ramp-up", "1s"),
        ("--think", "1s", "--turns", "2"),
        ("--prefix-groups", "2", "--prefix-tokens", "8"),
    ],
)
def test_options_that_go_together_are_taken(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("bench", *arguments, "--url", "127.0.0.1:1")[0] == 1  # nobody listens there


def test_the_speed_of_prompts_without_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a\nb\n")
    with pytest.raises(InvalidRequest, match="speed 2 without a trace"):
        Prompts(path=tmp_path / "prompts.txt", speed=2.0).dataset(None)
    assert len(Prompts(path=tmp_path / "prompts.txt").dataset(None).sessions) == 2


def test_a_limit_of_a_probe_takes_every_unit(cli: Cli) -> None:
    assert cli("probe", "--url", "127.0.0.1:1", "--max-ttft-p95", "1us")[0] == 1  # nobody listens there


def test_no_help_shows_an_escape_as_what_it_stands_for() -> None:
    command = group.get_command(click.Context(group), "generate")
    assert command is not None
    text = command.get_help(click.Context(command, info_name="generate", terminal_width=200))
    assert "$'\\n'" in text and '--stop "."' in text
