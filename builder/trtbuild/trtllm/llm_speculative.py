"""`speculative_config` of the LLM API: what each decoding_type takes, in which releases, and which mode of trtbuild.yaml it serves.

Source: LLM API specification 1.7 and 1.11. Data, and the choice of a decoding_type for a release.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trtbuild.trtllm.llm_arg_types import (
    EVER,
    NEW_IN_1_2,
    NEWEST,
    SINCE_1_1,
    SINCE_1_2,
    SINCE_1_3,
    UNTIL_1_2,
    UNTIL_1_3,
    UNTIL_RC21,
    Arg,
    Life,
    anything,
    flag,
    in_,
    integer,
    mapping,
    number,
    numbers,
    text,
)  # fmt: skip
from trtbuild.trtllm.versions import Release, Span

#: Fields of every decoding_type.
BASE: dict[str, Arg] = {
    "decoding_type": text(nullable=False),
    "max_draft_len": integer(low=1),
    "max_total_draft_tokens": integer(low=1, life=SINCE_1_2),
    "speculative_model_dir": text(note="an alias of speculative_model from 1.3 on"),
    "speculative_model": text(life=SINCE_1_3),
    "max_concurrency": integer(low=1, life=SINCE_1_1),
    "draft_len_schedule": mapping(life=SINCE_1_2, note="excludes max_concurrency"),
    "load_format": text(life=SINCE_1_1),
    "acceptance_window": integer(low=1, life=UNTIL_1_3, renamed_to="acceptance_rate_window_size"),
    "acceptance_length_threshold": number(low=0, life=UNTIL_1_3, renamed_to="acceptance_rate_threshold"),
    "allow_advanced_sampling": flag(life=SINCE_1_2, note="deprecated in newest"),
    **in_(
        NEWEST, acceptance_rate_window_size=integer(low=1), acceptance_rate_threshold=number(low=0), use_rejection_sampling=flag(),
        advanced_sampling_mode=anything(), enable_penalty=flag(),
    ),
}  # fmt: skip
_ENGINE = "only TensorRT engines have it; target pytorch has none"


@dataclass(frozen=True, slots=True)
class Decoding:
    """One decoding_type.

    Attributes:
        own: fields besides those of `BASE`.
        life: releases that have it.
        renamed_to: what it is called after its life.
        refused: why it cannot be used although TensorRT-LLM has it.
    """

    own: dict[str, Arg] = field(default_factory=dict)
    life: Life = EVER
    renamed_to: str = ""
    refused: str = ""


_PARD = Life(Span("1.3.0rc0", None, "inferred", "calendar: 1.3"))
DECODING_TYPES: dict[str, Decoding] = {
    "Eagle3": Decoding(
        {
            "eagle3_one_model": flag("true"), "eagle3_layers_to_capture": numbers(), "eagle3_model_arch": text("llama3", "mistral_large3"),
            "eagle_choices": anything(life=UNTIL_RC21, note="deprecated"), "use_dynamic_tree": flag(), "dynamic_tree_max_topK": integer(low=1),
            "sa_config": mapping(life=NEWEST),
        },
        NEW_IN_1_2,
    ),
    "Eagle": Decoding(
        {
            "eagle3_one_model": flag("true"), "eagle3_layers_to_capture": numbers(life=SINCE_1_1), "eagle_choices": anything(), "num_eagle_layers": integer(low=1),
            "max_non_leaves_per_layer": integer(low=1), "greedy_sampling": flag("true"), "posterior_threshold": number(low=0),
        },
        UNTIL_1_2, renamed_to="Eagle3",
    ),
    "MTP": Decoding({
        "num_nextn_predict_layers": integer("1", low=1, life=UNTIL_1_3, renamed_to="max_draft_len"), "use_relaxed_acceptance_for_thinking": flag(),
        "relaxed_topk": integer("1", low=1), "relaxed_delta": number("0.0", low=0), "use_mtp_vanilla": flag(), "mtp_eagle_one_model": flag("true", life=SINCE_1_1),
    }),
    "NGram": Decoding({
        "max_matching_ngram_size": integer("0 or 2", low=0), "is_keep_all": flag("true"), "is_use_oldest": flag("true"), "is_public_pool": flag("true"),
    }),
    "DraftTarget": Decoding({}, UNTIL_1_2, renamed_to="Draft_Target"),
    "Draft_Target": Decoding({"draft_target_one_model": flag(life=NEWEST)}, NEW_IN_1_2),
    "UserProvided": Decoding({}, UNTIL_1_2, renamed_to="User_Provided", refused="its drafter is a Python object, which a YAML file cannot hold"),
    "User_Provided": Decoding({}, NEW_IN_1_2, refused="its drafter is a Python object, which a YAML file cannot hold"),
    "AUTO": Decoding({}, SINCE_1_1),
    "SaveState": Decoding({}, SINCE_1_2),
    "PARD": Decoding({}, _PARD),
    "SA": Decoding({}, NEWEST), "DFlash": Decoding({}, NEWEST), "DSpark": Decoding({}, NEWEST),
    "Lookahead": Decoding({}, UNTIL_RC21, refused=_ENGINE),
    "Medusa": Decoding({}, UNTIL_RC21, refused=_ENGINE),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of `speculative.mode` that the PyTorch backend has.

    Attributes:
        decoding_types: its names, the newest first.
        length_keys: what its draft length is called, the newest first.
        needs_model: whether it needs `speculative.draft_model`.
        needs_length: whether it needs `speculative.max_draft_len`.
        is_two_models: whether a draft model runs in steps of its own, which the overlap scheduler cannot follow (1.6).
    """

    decoding_types: tuple[str, ...]
    length_keys: tuple[str, ...] = ("max_draft_len",)
    needs_model: bool = False
    needs_length: bool = True
    is_two_models: bool = False


MODES: dict[str, Mode] = {
    "draft_target": Mode(("Draft_Target", "DraftTarget"), needs_model=True, is_two_models=True),
    "eagle3": Mode(("Eagle3", "Eagle"), needs_model=True),
    "ngram": Mode(("NGram",)),
    "mtp": Mode(("MTP",), ("max_draft_len", "num_nextn_predict_layers"), needs_length=False),
}
#: Modes that engines alone have -> (why, what comes nearest).
ENGINE_ONLY: dict[str, tuple[str, str]] = {
    "medusa": ("Medusa heads are part of an engine", "eagle3 (with an EAGLE-3 head of the model), or ngram, which needs no draft"),
    "lookahead": ("lookahead decoding is part of an engine", "ngram, which needs no draft either"),
    "redrafter": ("recurrent drafters are part of an engine", "eagle3 (with an EAGLE-3 head of the model), or ngram, which needs no draft"),
    "eagle": ("heads of EAGLE-1 and EAGLE-2 are part of an engine", "eagle3 (with an EAGLE-3 head of the model), or ngram, which needs no draft"),
}  # fmt: skip


def decoding_type(mode: Mode, release: Release) -> str:
    """Return what a mode is called in a release."""
    return next(name for name in mode.decoding_types if DECODING_TYPES[name].life.state(release) == "present")


def fields_of(name: str) -> dict[str, Arg]:
    """Return the fields of a decoding_type; those of the base for one that is not known."""
    own = DECODING_TYPES[name].own if name in DECODING_TYPES else {}
    return {**BASE, **own}


def length_key(mode: Mode, release: Release) -> str:
    """Return what the draft length of a mode is called in a release (`num_nextn_predict_layers` of MTP until 1.2)."""
    own = DECODING_TYPES[decoding_type(mode, release)].own
    older = [name for name in mode.length_keys if name in own and own[name].life.state(release) == "present"]
    return older[0] if older else mode.length_keys[0]
