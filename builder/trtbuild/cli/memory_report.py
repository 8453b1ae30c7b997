"""How a deployment plan looks: what every rank takes, what the KV pool holds, whether it fits, how fast it could be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.cli.report import print_conversion_plan, size
from trtbuild.console import print_json, print_text

#: Figure of a what-if -> row title and how it is written.
_COMPARED: tuple[tuple[str, str, str], ...] = (
    ("gpus", "GPUs", "count"), ("weight_bytes", "weights per GPU", "bytes"), ("fixed_bytes", "before the KV cache", "bytes"),
    ("kv_bytes_per_token", "KV cache per token", "bytes"), ("kv_tokens", "KV pool, tokens", "count"), ("max_seq_len", "max_seq_len", "count"),
    ("full_length_sequences", "requests of full length", "count"), ("sequences_at_lengths", "requests at these lengths", "count"),
    ("smallest_gpu_bytes", "smallest GPU", "bytes"), ("fits", "fits", "yes"), ("ttft_s", "TTFT", "ms"), ("itl_s", "ITL, batch 1", "ms"),
    ("tokens_per_s", "tokens/s", "count"), ("cost_per_million_output_tokens", "cost per 1M tokens", "price"),
)  # fmt: skip


def print_deployment_plan(plan: Mapping[str, Any], *, as_json: bool, explain: bool, exact: bool) -> None:
    """Print a deployment plan (`planning.plan`).

    Args:
        plan: the plan.
        as_json: print all of it as JSON.
        explain: add the origin and the formula of every value.
        exact: print bytes instead of GiB.
    """
    if as_json:
        print_json(plan)
        return
    of_bytes: Callable[[int], str] = (lambda count: f"{count:,}") if exact else size
    if not plan["is_converted"]:
        _print_sized(plan, of_bytes)
        if explain:
            _print_explained(plan, of_bytes)
        return
    print_conversion_plan(plan["conversion"], as_json=False)
    _print_limits(plan, of_bytes)
    if plan["memory"] is None:
        print_text(
            "note: target reference runs on the CPU; memory of a GPU is planned for --target tensorrt and pytorch",
        )
    else:
        _print_memory(plan, of_bytes)
        _print_speed(plan)
        _print_fit(plan, of_bytes)
    _print_host(plan["host"], of_bytes)
    for note in plan["notes"]:
        print_text(f"note: {note}")
    if plan["what_if"]:
        _print_compared(plan["what_if"], of_bytes)
    if explain:
        _print_explained(plan, of_bytes)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first flush left and the others right; no narrower for a narrow terminal, so that numbers stay whole."""
    widths = [max(len(row[number]) for row in (columns, *rows)) for number in range(len(columns))]
    for row in (columns, *rows):
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print_text("  " + "  ".join(cells).rstrip())


def _print_sized(plan: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    held = ", ".join(f"{of_bytes(count)} {dtype}" for dtype, count in plan["weight_bytes"].items())
    memory = plan["memory"]
    print_text(
        f"{plan['architecture']} is not converted: {plan['reason']}.\n{plan['num_parameters']:,} parameters: {held}; "
        f"{plan['kv_values_per_token']:,} numbers of KV cache per token.\n{plan['instead']}; `trtbuild build` makes nothing of it.",
    )
    print_text(
        f"per GPU: weights {of_bytes(memory['weight_bytes_per_gpu'])}, KV cache {memory['kv_bytes_per_token']:,} bytes per token",
    )
    if memory["gpu_memory_bytes"] is not None:
        print_text(
            f"KV pool: {memory['kv_pool_tokens']:,} tokens, {of_bytes(memory['kv_pool_bytes'])}: {memory['requests']:,} requests of "
            f"{memory['input_len']} + {memory['output_len']} tokens at once",
        )
        if plan["fit"]["fits"]:
            print_text(
                f"fits a GPU with {of_bytes(memory['gpu_memory_bytes'])}, as far as weights and KV cache go; activations and buffers are not planned"
            )
    else:
        print_text("fit not checked: no GPU of known memory is named (--gpu, hardware.gpu or hardware.memory_bytes)")
    for note in plan["notes"]:
        print_text(f"note: {note}")
    if plan["what_if"]:
        _print_compared(plan["what_if"], of_bytes)


def _print_limits(plan: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    limits = plan["limits"]
    print_text(
        f"target {plan['target']}; up to {limits['max_batch_size']} requests of {limits['max_seq_len']} tokens, prompts up to "
        f"{limits['max_input_len']}, {limits['max_num_tokens']} tokens per step",
    )
    largest = max(plan["kv_cache"], key=lambda rank: rank["bytes_per_token"])
    pools = plan["memory"]["kv_pool"]["blocks"] if plan["memory"] else []
    held = f"{limits['kv_tokens']:,} tokens" + (
        f", and {' and '.join(_window_pool(pool, limits['tokens_per_block']) for pool in pools if pool['window'] is not None)},"
        if len(pools) > 1
        else ""
    )
    print_text(
        f"KV pool: {held} in blocks of {limits['tokens_per_block']} ({limits['full_length_sequences']} sequences of "
        f"full length), {largest['bytes_per_token']:,} bytes per token of all layers and {of_bytes(largest['pool_bytes'])} on the fullest rank",
    )


def _window_pool(pool: Mapping[str, Any], tokens_per_block: int) -> str:
    return f"{pool['blocks'] * tokens_per_block:,} of layers with a window of {pool['window']:,}"


def _free(nbytes: int, of_bytes: Callable[[int], str]) -> str:
    return of_bytes(nbytes) if nbytes >= 0 else f"lacks {of_bytes(-nbytes)}"


def _print_memory(plan: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    """Print a column for each pipeline stage: the tensor-parallel ranks of one are alike."""
    memory = plan["memory"]
    ranks = [rank for rank in memory["ranks"] if rank["tp_rank"] == 0]
    alike = len(memory["ranks"]) // len(ranks)
    names = list(dict.fromkeys(line["name"] for rank in ranks for line in rank["lines"]))
    columns = [
        f"rank {rank['rank']}" + (f" to {rank['rank'] + alike - 1}" if alike > 1 else "") + f", layers {rank['layers'][0]}-{rank['layers'][1]}"
        for rank in ranks
    ]  # fmt: skip
    rows = []
    for name in names:
        found = [next((line["bytes"] for line in rank["lines"] if line["name"] == name), 0) for rank in ranks]
        rows.append((name, *map(of_bytes, found)))
    rows.append(("before the KV cache", *(of_bytes(rank["fixed_bytes"]) for rank in ranks)))
    if memory["gpu_memory_bytes"] is not None:
        rows.append(("free after engine load", *(_free(rank["free_after_load_bytes"], of_bytes) for rank in ranks)))
    rows.append(("KV pool", *(of_bytes(rank["kv_pool_bytes"]) for rank in ranks)))
    if any(rank["adapter_bytes"] for rank in ranks):
        rows.append(("LoRA adapters", *(of_bytes(rank["adapter_bytes"]) for rank in ranks)))
    if memory["gpu_memory_bytes"] is not None:
        rows.append(("stays free", *(_free(rank["reserve_bytes"], of_bytes) for rank in ranks)))
    _table(("per GPU", *columns), rows)
    pool = memory["kv_pool"]
    at = pool["at_lengths"]
    lost = at["block_waste"]
    print_text(
        f"weights take {memory['compression']['ratio']:.0%} of 16 bits; KV pool by {pool['limited_by']}; {at['input_len']} + {at['output_len']} "
        f"tokens: the pool holds {at['sequences']:,} requests, {of_bytes(at['sequence_bytes'])} each; whole blocks waste {lost['tokens_at_length']} tokens "
        f"at this length, {lost['average_tokens']:g} on average ({lost['average_share']:.1%})",
    )


def _print_speed(plan: Mapping[str, Any]) -> None:
    for title, speed in (("roofline estimate", plan["speed"]), ("measured kernels", plan["measured"])):
        if speed is None:
            continue
        band = (
            f", each to a factor of {speed['assumed']['band_factor']:g}"
            if "assumed" in speed
            else f", by {speed['source']}"
        )
        print_text(
            f"{title}{band}: TTFT {speed['ttft_s'] * 1e3:.0f} ms, ITL {speed['itl_s'] * 1e3:.1f} ms alone and "
            f"{speed['itl_full_batch_s'] * 1e3:.1f} ms in a full batch, {speed['tokens_per_s']:,.0f} tokens/s",
        )
    speed = plan["speed"]
    if speed and speed["weight_streaming_step_s"] is not None:
        print_text(
            f"engine.weight_streaming: bringing all weights over PCIe takes {speed['weight_streaming_step_s'] * 1e3:.0f} ms, a bound for every step"
        )
    if speed and speed["cost_per_million_output_tokens"] is not None:
        print_text(
            f"{speed['cost_per_million_output_tokens']:.2f} per million answer tokens at that rate, GPUs always full",
        )


def _print_fit(plan: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    fit, memory = plan["fit"], plan["memory"]
    if not fit["checked"] and fit["fits"] is None:
        smallest = memory["smallest_gpu_bytes"]
        fraction = memory["kv_pool"]["free_gpu_memory_fraction"]
        print_text(
            "fit not checked: no GPU of known memory is named (--gpu, hardware.gpu or hardware.memory_bytes); "
            + (
                f"no GPU that there is holds one sequence of full length with kv_cache.free_gpu_memory_fraction={fraction:g}"
                if smallest is None
                else f"the smallest that holds one sequence of full length has {of_bytes(smallest)}"
            )
        )
    elif fit["fits"]:
        print_text(
            f"fits {memory['gpu']['name'] if memory['gpu'] else 'the GPU'} with {of_bytes(memory['gpu_memory_bytes'])}",
        )
    for remark in fit["remarks"]:
        print_text(f"note: {remark}")


def _print_host(host: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    built = host["build_memory_bytes"]
    building = f"; trtllm-build {of_bytes(built[0])} to {of_bytes(built[1])} of host memory" if built else ""
    more = ", calibration not counted," if host["conversion_s_excludes_calibration"] else ""
    blocks = f", {host['host_kv_blocks']:,} KV blocks per rank in it" if host["host_kv_blocks"] else ""
    print_text(
        f"to make it (estimates): {of_bytes(host['disk_bytes'])} of disk, {_seconds(host['conversion_s'])} of conversion{more} with up to "
        f"{of_bytes(host['conversion_memory_bytes'])} of memory{building}; the server: {of_bytes(host['server_memory_bytes'])} of host memory{blocks}",
    )


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 1 else "less than 1 s"


def _print_compared(columns: Sequence[Mapping[str, Any]], of_bytes: Callable[[int], str]) -> None:
    write: dict[str, Callable[[Any], str]] = {
        "bytes": of_bytes,
        "count": lambda value: f"{value:,.0f}",
        "yes": lambda value: "yes" if value else "no",
        "ms": lambda value: f"{value * 1e3:.1f} ms",
        "price": lambda value: f"{value:.2f}",
    }
    rows = []
    for key, title, kind in _COMPARED:
        found = [column.get(key) for column in columns]
        if any(value is not None for value in found):
            rows.append((title, *(write[kind](value) if value is not None else "-" for value in found)))
    _table(("what if", *(column["name"] for column in columns)), rows)
    for column in columns:
        if column["error"]:
            print_text(f"{column['name']} is refused: {column['error']}")
            if column["hint"]:
                print_text(f"    hint: {column['hint']}")
        for problem in column.get("problems", ()):
            print_text(f"{column['name']} does not fit: {problem}")


def _print_explained(plan: Mapping[str, Any], of_bytes: Callable[[int], str]) -> None:
    for row in plan["explain"]:
        print_text(f"{row['name']} = {_value(row['value'], row['unit'], of_bytes)} ({row['origin']}): {row['formula']}")


def _value(value: Any, unit: str, of_bytes: Callable[[int], str]) -> str:
    """Return a value in words: exact, and where it is in bytes with a unit that people read."""
    if value is None:
        return "not known"
    if unit == "bytes":
        return f"{value:,} bytes" + (f" = {of_bytes(value)}" if abs(value) >= 1024 and of_bytes is size else "")
    digits = ",.0f" if not isinstance(value, float) or value >= 1000 else ",.3g"
    return f"{value:{digits}} {unit}".strip()
