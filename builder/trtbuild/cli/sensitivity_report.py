"""How a mixture looks in a terminal: what it costs, how often each scheme was chosen, and the most sensitive linears."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtbuild.cli.ruled import print_table
from trtbuild.console import print_json, stdout_console

if TYPE_CHECKING:
    from trtbuild.sensitivity.run import Mixture

#: Groups listed, the most sensitive first.
_LISTED = 10


def print_mixture(mixture: Mixture, *, as_json: bool) -> None:
    """Print the result of `mix`."""
    if as_json:
        print_json(mixture.to_json())
        return
    console = stdout_console()
    rows = list(zip(mixture.groups, mixture.choice.schemes, strict=True))
    names = list(mixture.groups[0].bits)
    smallest = min(names, key=lambda name: mixture.groups[0].bits[name])
    columns = ("linears", *(f"{name}, error" for name in names), "chosen")
    lines = []
    for group, chosen in sorted(rows, key=lambda row: -row[0].errors[smallest])[:_LISTED]:
        linears = ", ".join(module.rpartition(".")[2] for module in group.modules[:3])
        more = ", ..." if len(group.modules) > 3 else ""
        errors = [f"{group.errors[name]:.2e}" for name in names]
        lines.append((f"layer {group.layer}: {linears}{more}", *errors, chosen))
    print_table(columns, lines, align=f"<{'>' * len(names)}<", title=f"most sensitive to {smallest}")
    weights: Counter[str] = Counter()
    for group, chosen in rows:
        weights[chosen] += group.weights
    shares = ", ".join(f"{name} {count / weights.total():.1%}" for name, count in weights.most_common())
    console.print(f"{mixture.choice.bits_per_weight:.3f} bits per weight: {shares} of the weights", soft_wrap=True)
