"""Rules about how an ensemble is put together: that there are steps, in an order, of versions that exist, and that no wires are crossed."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.repo.lint.ensemble import Wire, connections, ensembles, line_in_step, wires_of
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository

#: Input of a step -> the ensemble's input that belongs there, where the names differ (Triton specification 1.4).
OUTER = {
    "QUERY": "text_input", "DECODER_QUERY": "decoder_text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words", "runtime_top_k": "top_k", "runtime_top_p": "top_p", "len_penalty": "length_penalty", "streaming": "stream",
}  # fmt: skip
#: Input of a step -> the output of an earlier step that belongs there (the same).
INNER = {
    "input_ids": "INPUT_ID", "input_lengths": "REQUEST_INPUT_LEN", "decoder_input_ids": "DECODER_INPUT_ID",
    "decoder_input_lengths": "REQUEST_DECODER_INPUT_LEN", "request_output_len": "REQUEST_OUTPUT_LEN", "bad_words_list": "BAD_WORDS_IDS",
    "stop_words_list": "STOP_WORDS_IDS", "embedding_bias": "EMBEDDING_BIAS", "end_id": "OUT_END_ID", "pad_id": "OUT_PAD_ID",
    "prompt_table_extra_ids": "OUT_PROMPT_TABLE_EXTRA_IDS", "TOKENS_BATCH": "output_ids", "SEQUENCE_LENGTH": "sequence_length",
}  # fmt: skip


def steps(repository: Repository) -> Iterator[Problem]:
    """Find ensembles without steps, steps that map nothing or name a version that does not exist, and ensembles that hold themselves."""
    for model in repository.parsed():
        if model.config.platform == "ensemble" and not model.config.ensemble_scheduling.step:
            yield Problem(model.file, "it is an ensemble, and has no step", "add ensemble_scheduling with its steps")
    for model in ensembles(repository):
        for step in model.config.ensemble_scheduling.step:
            line = line_in_step(model, step.model_name)
            for field in ("input_map", "output_map"):
                if not getattr(step, field):
                    yield Problem(
                        model.file, f"the step of '{step.model_name}' has no {field}", "map its tensors", line
                    )
            member = repository.models.get(step.model_name)
            versions = member.versions if member is not None else ()
            if versions and step.model_version > 0 and str(step.model_version) not in versions:
                yield Problem(
                    model.file,
                    f"the step of '{step.model_name}' wants version {step.model_version}, which does not exist",
                    f"use -1 for the newest, or one of: {', '.join(versions)}",
                    line,
                )
        for name, tensor in _waiting(model):
            yield Problem(
                model.file,
                f"the step of '{name}' waits for '{tensor}' for ever: only steps behind it make it",
                "take it from an input of the ensemble, or from a step that needs nothing of this one",
                line_in_step(model, name),
            )
        if circle := _circle(repository, model):
            yield Problem(model.file, f"it holds itself: {' -> '.join(circle)}", "take one of the steps out")


def optional(repository: Repository) -> Iterator[Problem]:
    """Find inputs that clients may leave out, and that the member needs."""
    for wire, owner, here, there in connections(repository):
        if owner is wire.ensemble and wire.side == "input" and there.optional and not here.optional:
            yield Problem(
                wire.ensemble.file,
                f"input '{wire.name}' is optional, and '{wire.member_name}' needs it as '{wire.tensor}'",
                "make both optional, or none",
                line_in_step(wire.ensemble, wire.tensor, wire.member_name),
            )


def crossed(repository: Repository) -> Iterator[Problem]:
    """Find wires between tensors of different names where the other side has one of the same name, or the one that belongs there."""
    for model in ensembles(repository):
        own = {side: {tensor.name for tensor in getattr(model.config, side)} for side in ("input", "output")}
        wires = list(wires_of(repository, model))
        made = {wire.name: wire.tensor for wire in wires if wire.side == "output"}
        for wire in wires:
            if wire.member is None or not (wire.member.runs_engine or wire.member.role or wire.member.folder == CORE):
                continue  # of other people's models nobody knows what belongs together
            what, source = "", wire.name
            if wire.name in own[wire.side]:
                what = _crossing(wire, own[wire.side])
            elif wire.side == "input" and wire.name in made:
                source = made[wire.name]
                belongs = INNER.get(wire.tensor, source)
                what = f"'{belongs}' belongs there" if source != belongs and belongs in made.values() else ""
            if what:
                yield Problem(
                    model.file,
                    f"{wire.side} '{wire.tensor}' of '{wire.member_name}' is wired to '{source}', and {what}",
                    "wire tensors that mean the same",
                    line_in_step(model, wire.tensor, wire.member_name),
                )


def _crossing(wire: Wire, own: set[str]) -> str:
    """Return what speaks against a wire to another tensor of the ensemble; empty when nothing does."""
    belongs = OUTER.get(wire.tensor, wire.tensor)
    if wire.name.casefold() == belongs.casefold():
        return ""
    theirs = {tensor.name for tensor in getattr(wire.member.config, wire.side)} if wire.member is not None else set()
    if wire.name in theirs:
        return f"'{wire.member_name}' has a '{wire.name}' itself"
    right = next((name for name in sorted(own) if name.casefold() == belongs.casefold()), "")
    return f"'{right}' belongs there" if right else ""


def _waiting(model: Model) -> Iterator[tuple[str, str]]:
    """Yield the member and a tensor of every step that never gets all that it takes, though somebody makes it."""
    steps = list(model.config.ensemble_scheduling.step)
    made = {name for step in steps for name in step.output_map.values()}
    # What nobody makes is another rule's, and nothing waits for it here.
    there = {name for step in steps for name in step.input_map.values()} - made
    there |= {tensor.name for tensor in model.config.input}
    while ready := [step for step in steps if there.issuperset(step.input_map.values())]:
        steps = [step for step in steps if step not in ready]
        there |= {name for step in ready for name in step.output_map.values()}
    for step in steps:
        yield step.model_name, min(set(step.input_map.values()) - there)


def _circle(repository: Repository, start: Model) -> list[str]:
    """Return a way from an ensemble back to itself, empty when there is none."""
    waiting, seen = [[start.folder]], set[str]()
    while waiting:
        way = waiting.pop()
        model = repository.models.get(way[-1])
        if model is None or model.config is None:
            continue
        for name in sorted({step.model_name for step in model.config.ensemble_scheduling.step}):
            if name == start.folder:
                return [*way, name]
            if name not in seen:
                seen.add(name)
                waiting.append([*way, name])
    return []


RULES: dict[str, Rule] = {
    "ensemble-steps": Rule(
        "error", steps, "ensembles without steps, steps without maps or of a version that does not exist, and ensembles that hold themselves",
        "`ensemble scheduling must be set`, `must specify 'output_map' in step`, `whose required version 3 is not loaded`, `circular dependency between ensembles` "
        "(seen with Triton 2.51).",
        "Correct the step.",
    ),
    "ensemble-optional": Rule(
        "error", optional, "optional inputs of an ensemble that a member needs", "The server loads it, and requests that leave the input out fail (seen with Triton 2.51).",
        "Make both optional, or none.",
    ),
    "ensemble-crossed": Rule(
        "warning", crossed, "wires to another tensor than the one of the same name, or the one that belongs there in NVIDIA's ensemble",
        "Types and shapes fit, so nothing complains: a presence penalty that is taken for a frequency penalty only changes the answers.",
        "Wire tensors of the same name to each other, and those of the models of NVIDIA's repository as its ensemble does.",
    ),
}  # fmt: skip
