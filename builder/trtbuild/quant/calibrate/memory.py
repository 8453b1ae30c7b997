"""What a calibration needs beside one decoder layer in float32: so that a budget that is too small is refused before any work.

Knows shapes only.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import UsageError
from trtbuild.quant.calibrate.linears import LinearGroup, has_own_inputs, linear_groups
from trtbuild.quant.search import SEARCHES
from trtbuild.quant.search.rows import BLOCK_ELEMENTS

#: What a search takes for each weight of a row block: the block in float32 and the temporaries of a step, eight of that size.
_BYTES_PER_WEIGHT = 32
#: Activations of a sample of some hundred tokens, buffers of reads, and what libraries keep: 20 MiB were measured with
#: `tests/unit/core/test_calibration_memory.py`, at hidden sizes of thousands it is more.
_OTHER_BYTES = 2**26


def require_memory(plan: ConversionPlan, memory_bytes: int) -> None:
    """Refuse a budget that a search cannot keep.

    Args:
        plan: what will be calibrated.
        memory_bytes: what may be used above the interpreter and one decoder layer in float32.

    Raises:
        UsageError: it is too small; the hint has the least that will do.
    """
    least, module = least_memory_bytes(plan)
    if memory_bytes < least:
        raise UsageError(
            f"a memory budget of {memory_bytes:,} bytes is too small to calibrate {plan.layout.scheme.name}: {module} takes "
            f"{least:,} bytes beside what one decoder layer takes in float32",
            hint=f"--memory {-(-least >> 20)}MiB is the least",
        )


def least_memory_bytes(plan: ConversionPlan) -> tuple[int, str]:
    """Return the least budget in bytes, and the module that decides it; 0 where nothing is searched.

    A group whose moments do not fit beside the layer is worked on alone: in^2 float32 for its moments, the codes of one linear, and
    row blocks must fit into what the layer took and the budget.
    """
    least, module = 0, ""
    for layer in range(plan.dims.num_layers):
        shapes, layer_bytes = _shapes(plan, layer)
        for group in linear_groups(plan, layer):
            if group.search is None:
                continue
            needed = _beside(group, shapes, layer_bytes)
            if needed > least:
                least, module = needed, group.linears[-1].module
    return least, module


def _beside(group: LinearGroup, shapes: dict[str, tuple[int, int]], layer_bytes: int) -> int:
    assert group.search is not None
    rows, columns = (max(shapes[linear.module][axis] for linear in group.linears) for axis in (0, 1))
    blocks = _OTHER_BYTES + _BYTES_PER_WEIGHT * min(rows * columns, BLOCK_ELEMENTS)
    if not SEARCHES[group.search.kind].needs_moments:
        return blocks
    if has_own_inputs(group):  # small moments, which stay in memory beside the layer
        return blocks + rows * columns + 4 * columns * group.search.group_size * len(group.linears)
    return blocks + max(rows * columns + 4 * columns**2 - layer_bytes, 0)


def _shapes(plan: ConversionPlan, layer: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Return module -> (rows, columns) of the linears of a layer, and the bytes of all its weights in float32."""
    rows: dict[str, int] = defaultdict(int)
    columns: dict[str, int] = {}
    total = 0
    for slot in plan.layout.slots:
        if slot.layer != layer:
            continue
        for part in slot.parts:
            total += 4 * prod(part.shape)
            if slot.rule.quantizable:
                rows[part.module] += part.shape[0]
                columns[part.module] = part.shape[1]
    return {module: (rows[module], columns[module]) for module in columns}, total
