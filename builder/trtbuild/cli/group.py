"""The click group whose verbs are imported on use, so that `trtbuild --help` stays fast and imports nothing heavy."""

from __future__ import annotations

from importlib import import_module

import click

#: verb -> ("module:attribute", one line for `trtbuild --help`), in the order of a deployment.
VERBS: dict[str, tuple[str, str]] = {
    "init": ("trtbuild.cli.init:init", "Write a commented trtbuild.yaml for a model."),
    "plan": ("trtbuild.cli.plan:plan", "Say what a deployment will be, from headers alone; write nothing."),
    "sensitivity": (
        "trtbuild.cli.sensitivity:sensitivity",
        "Measure which linears lose how much; mix schemes within a budget.",
    ),
    "convert": ("trtbuild.cli.convert:convert", "Convert a Hugging Face checkpoint to rank files."),
    "verify": ("trtbuild.cli.verify:verify", "Read a checkpoint again: digests, and every weight against its source."),
    "evaluate": ("trtbuild.cli.evaluate:evaluate", "Compare a quantized checkpoint with its source on held-out text."),
    "build": ("trtbuild.cli.build:build", "Convert and assemble everything a server needs in one folder."),
    "lora": ("trtbuild.cli.lora:lora", "Write a LoRA adapter for TensorRT-LLM's LoRA cache."),
    "render": ("trtbuild.cli.render:render", "Render the Triton model repository."),
    "lint": ("trtbuild.cli.lint:lint", "Check a Triton model repository without a server."),
    "migrate": ("trtbuild.cli.migrate:migrate", "Make a deployment for the LLM API of one with engines."),
    "diff": ("trtbuild.cli.diff:diff", "Compare two Triton model repositories by what they mean."),
    "serve": ("trtbuild.cli.serve:serve", "Start tritonserver on a model repository."),
    "reload": ("trtbuild.cli.reload:reload", "Swap a version of a model on a running server."),
    "generate": ("trtbuild.cli.generate:generate", "Send one prompt to a server and print the answer."),
    "probe": ("trtbuild.cli.probe:probe", "Measure TTFT, ITL, TPOT, latency and tokens/s of a server."),
    "mock": ("trtbuild.cli.mock:mock", "Serve a mock of a Triton LLM server, with seeded times and faults."),
    "gateway": ("trtbuild.cli.gateway:gateway", "Serve OpenAI's HTTP API in front of a Triton server."),
    "bench": ("trtbuild.cli.bench:bench", "Load-test a server: latencies with intervals, goodput, capacity."),
    "compare": ("trtbuild.cli.compare:compare", "Say which of two load tests is faster, or that one cannot tell."),
    "demo": ("trtbuild.cli.demo:demo", "Run the whole path on a real small model, on a CPU."),
    "architectures": ("trtbuild.cli.architectures:architectures", "Print which models, targets and schemes there are."),
    "versions": (
        "trtbuild.cli.versions:versions",
        "Print which container carries which TensorRT-LLM, TensorRT and driver.",
    ),
    "doctor": ("trtbuild.cli.doctor:doctor", "Check whether this machine has what is needed."),
    "schema": ("trtbuild.cli.schema:schema", "Print the JSON Schema of trtbuild.yaml."),
}


class LazyGroup(click.Group):
    """A group that reads its verbs from `VERBS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of `VERBS`."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb, or None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a verb; an unknown one is refused with the nearest known one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            known = f"Did you mean '{near[0]}'?" if near else f"Known commands: {', '.join(VERBS)}."
            raise click.UsageError(f"No such command '{args[0]}'. {known}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from trtbuild import __version__

        click.echo(f"trtbuild {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog='Example: trtbuild demo     Shell completion: eval "$(_TRTBUILD_COMPLETE=bash_source trtbuild)"',
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Build, quantize, deploy and probe TensorRT-LLM models behind Triton Inference Server."""
