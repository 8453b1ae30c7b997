"""The LLM API's arguments: what a release takes, what becomes of trtbuild.yaml, and what `llm_api.extra` may hold."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trtbuild.errors import UsageError
from trtbuild.limits import resolve_limits
from trtbuild.spec import parse
from trtbuild.spec.fields import fields
from trtbuild.trtllm.llm_arg_tables import NESTED, OLD_NAMES, TOP
from trtbuild.trtllm.llm_args import LlmArgs, Setting, leaves
from trtbuild.trtllm.llm_serve import FLAGS, serve_command, serve_script, yaml_text
from trtbuild.trtllm.llm_settings import ROWS, Facts, arguments, settings
from trtbuild.trtllm.llm_speculative import DECODING_TYPES, MODES, fields_of
from trtbuild.trtllm.versions import RELEASES, Feature, Release, find_release

SERVING = [release.name for release in RELEASES if release.has(Feature.LLM_API)]


def facts(release: str = "1.2.1", kv: str | None = None, **sections: Any) -> Facts:
    deployment = parse({"model": {"path": "/model"}, "target": "pytorch", **sections}, origin="test")
    return Facts(deployment, find_release(release), resolve_limits(deployment, 4096), kv)


def extra(data: dict[str, Any], release: str = "1.2.1", **sections: Any) -> dict[str, Any]:
    return arguments(facts(release, llm_api={"extra": data}, **sections))


def state(path: tuple[str, ...], decoding: str, release: Release) -> str:
    table = TOP
    for key in path[:-1]:
        table = fields_of(decoding) if key == "speculative_config" else NESTED[table[key].section]
    return table[path[-1]].life.state(release)


class TestYaml:
    @pytest.mark.parametrize("release", SERVING)
    def test_the_file_of_every_release_holds_only_arguments_that_it_has(self, release: str) -> None:
        made = arguments(
            facts(
                release,
                "FP8",
                parallel={"tp_size": 4, "pp_size": 2, "ep_size": 2},
                limits={"max_batch_size": 64, "max_seq_len": 2048, "max_num_tokens": 4096},
                kv_cache={"max_tokens": 10000, "host_cache_bytes": 1, "max_attention_window": [512], "tokens_per_block": 64},
                scheduling={"policy": "max_utilization", "chunked_context": False},
                llm_api={"moe_backend": "CUTLASS", "attention_dp": True, "guided_decoding": "xgrammar", "attn_backend": "FLASHINFER"},
                speculative={"mode": "eagle3", "draft_model": "/draft", "max_draft_len": 3},
                lora={"adapters": ["/adapter"], "target_modules": ["attn_q"]},
            )
        )  # fmt: skip
        read = yaml.safe_load(yaml_text(made, find_release(release)))
        assert read == made
        decoding = made["speculative_config"]["decoding_type"]
        assert {state(path, decoding, find_release(release)) for path, _ in leaves(made)} == {"present"}
        assert decoding == ("Eagle3" if find_release(release).has(Feature.EAGLE3) else "Eagle")

    def test_the_portable_file_of_the_specification_is_what_plain_settings_give(self) -> None:
        given = {
            "limits": {"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 4096},
            "kv_cache": {"free_gpu_memory_fraction": 0.85},
            "scheduling": {"chunked_context": False},
        }
        portable = {
            "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 4096,
            "enable_chunked_prefill": False,
            "kv_cache_config": {"free_gpu_memory_fraction": 0.85, "enable_block_reuse": True, "dtype": "fp8"},
            "cuda_graph_config": {"enable_padding": True, "max_batch_size": 64},
            "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}, "stream_interval": 1,
        }  # fmt: skip
        assert all(arguments(facts(release, "FP8", **given)) == portable for release in SERVING)

    @pytest.mark.parametrize(
        ("mode", "release", "written"),
        [
            ("mtp", "1.2", {"decoding_type": "MTP", "num_nextn_predict_layers": 2}),
            ("mtp", "1.3", {"decoding_type": "MTP", "max_draft_len": 2}),
            ("ngram", "1.0", {"decoding_type": "NGram", "max_draft_len": 2}),
            (
                "draft_target",
                "1.1",
                {"decoding_type": "DraftTarget", "max_draft_len": 2, "speculative_model_dir": "/d"},
            ),
            (
                "draft_target",
                "1.4",
                {"decoding_type": "Draft_Target", "max_draft_len": 2, "speculative_model_dir": "/d"},
            ),
        ],
    )
    def test_speculation_is_spelled_as_the_release_spells_it(
        self, mode: str, release: str, written: dict[str, Any]
    ) -> None:
        given = {"mode": mode, "max_draft_len": 2, **({"draft_model": "/d"} if MODES[mode].needs_model else {})}
        made = arguments(facts(release, speculative=given))
        assert made["speculative_config"] == written
        assert made.get("disable_overlap_scheduler", False) is (mode == "draft_target" and release == "1.1")

    @pytest.mark.parametrize("mode", ["medusa", "lookahead", "redrafter", "eagle"])
    def test_modes_that_engines_alone_have_are_refused_with_the_nearest(self, mode: str) -> None:
        with pytest.raises(UsageError, match=r"(?s)does not run on target pytorch.*the nearest is .*ngram"):
            arguments(facts(speculative={"mode": mode, "max_draft_len": 3, "draft_model": "/d"}))

    @pytest.mark.parametrize("given", [{"mode": "ngram"}, {"mode": "eagle3", "max_draft_len": 3}])
    def test_speculation_without_what_it_needs_is_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=r"speculative\.(max_draft_len|draft_model)"):
            arguments(facts(speculative=given))

    def test_graphs_that_are_off_are_null_and_nothing_sets_their_sizes(self) -> None:
        assert arguments(facts(llm_api={"cuda_graphs": False}))["cuda_graph_config"] is None
        with pytest.raises(UsageError, match="switches cuda_graph_config off"):
            extra_and_off = {"cuda_graphs": False, "extra": {"cuda_graph_config": {"batch_sizes": [1, 2]}}}
            arguments(facts(llm_api=extra_and_off))

    def test_sizes_of_graphs_come_from_one_place(self) -> None:
        made = extra({"cuda_graph_config": {"batch_sizes": [1, 2, 4]}})
        assert made["cuda_graph_config"] == {"enable_padding": True, "batch_sizes": [1, 2, 4]}
        assert extra({"cuda_graph_config": {"max_batch_size": 8}})["cuda_graph_config"]["max_batch_size"] == 8

    def test_every_row_names_a_field_of_trtbuild_yaml(self) -> None:
        places = {".".join(field.path) for field in fields()}
        assert {row.field for row in ROWS} <= places

    @pytest.mark.parametrize("release", SERVING)
    def test_nothing_is_built_that_was_not_looked_up(self, release: str) -> None:
        args = LlmArgs(find_release(release))
        for path in (("no_such_key",), ("kv_cache_config", "no_such_key"), ("speculative_config", "no_such_key")):
            with pytest.raises(UsageError, match="no argument"):
                args.build([Setting(path, 1, "a test")])


class TestExtra:
    def test_other_arguments_are_taken_over_nested_or_not(self) -> None:
        made = extra(
            {"enable_autotuner": False, "kv_cache_config": {"enable_partial_reuse": False}, "torch_compile_config": {}}
        )
        assert made["enable_autotuner"] is False
        assert made["kv_cache_config"]["enable_partial_reuse"] is False
        assert made["kv_cache_config"]["free_gpu_memory_fraction"] == 0.9
        assert made["torch_compile_config"] == {}

    @pytest.mark.parametrize(
        ("data", "release", "message"),
        [
            ({"max_tokns": 3}, "1.2", "did you mean 'max_num_tokens'"),
            ({"kv_cache_config": {"enable_partial_reus": True}}, "1.2", "did you mean 'kv_cache_config.enable_partial_reuse'"),
            ({"enable_partial_reuse": True}, "1.2", "did you mean 'kv_cache_config.enable_partial_reuse'"),
            ({"use_cuda_graph": True}, "1.2", "calls it cuda_graph_config"),
            ({"cuda_graph_config": {"padding_enabled": True}}, "1.1", "calls it cuda_graph_config.enable_padding"),
            ({"pytorch_backend_config": {"use_cuda_graph": True}}, "1.1", "calls it cuda_graph_config"),
            ({"mixed_sampler": True}, "1.0", "calls it enable_mixed_sampler"),
            ({"mixed_sampler": True}, "1.2", "calls it sampler_type"),
            ({"sampler_type": "auto"}, "1.0", "calls this enable_mixed_sampler"),
            ({"sampler_type": "auto"}, "1.4", "releases that have it: 1.1.0, 1.2.0, 1.2.1, 1.3.0rc20"),
            ({"enable_mixed_sampler": True}, "1.4", "releases that have it: 1.0.0, 1.0.3"),
            ({"enable_sleep": True}, "1.4", "calls this sleep_config"),
            ({"enable_sleep": True}, "1.0", "releases that have it: 1.2.0, 1.2.1"),
            ({"kv_cache_config": {"onboard_blocks": True}}, "1.4", "releases that have it: 1.0.0"),
            ({"kv_cache_config": {"disk_cache_size": 1}}, "1.2", "releases that have it: 1.4.0rc4"),
            ({"quant_config": {"quant_algo": "FP8"}}, "1.2", "takes quantization from the checkpoint"),
            ({"build_config": {}}, "1.2", "only the TensorRT engine backend"),
            ({"checkpoint_loader": "x"}, "1.2", "Python object"),
            ({"trust_remote_code": True}, "1.2", "code of the model's author"),
            ({"speculative_config": {"decoding_type": "Medusa"}}, "1.2", "only TensorRT engines have it"),
            ({"speculative_config": {"decoding_type": "PARD"}}, "1.2", "no decoding_type 'PARD'"),
            ({"speculative_config": {"decoding_type": "Draft_Target"}}, "1.1", "it calls it 'DraftTarget'"),
            ({"speculative_config": {"decoding_type": "ngram"}}, "1.2", "did you mean 'NGram'"),
            ({"moe_config": {"max_num_tokens": "many"}}, "1.2", "is str, need a whole number"),
            ({"stream": 1}, "1.2", "no argument 'stream'"),
            ({"num_postprocess_workers": -1}, "1.2", "0 or more"),
            ({"load_format": "gms"}, "1.2", "use auto, dummy, vision_only"),
            ({"enable_autotuner": None}, "1.2", "is null"),
        ],
    )  # fmt: skip
    def test_a_key_or_value_that_the_release_would_not_start_with_is_refused(
        self, data: dict[str, Any], release: str, message: str
    ) -> None:
        with pytest.raises(UsageError) as error:
            extra(data, release)
        assert message in str(error.value)
        assert "llm_api.extra." in error.value.message

    @pytest.mark.parametrize("row", [row for row in ROWS if row.is_owned], ids=lambda row: ".".join(row.path))
    def test_what_a_field_sets_cannot_be_set_again(self, row: Any) -> None:
        data: Any = "anything"
        for key in reversed(row.path):
            data = {key: data}
        with pytest.raises(UsageError, match=f"is set by {row.field} of trtbuild.yaml"):
            extra(data)

    def test_replacing_a_whole_section_that_fields_set_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"replaces what kv_cache\.enable_block_reuse"):
            extra({"kv_cache_config": None})

    def test_speculation_is_set_by_its_section_or_here_but_not_by_both(self) -> None:
        data = {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4, "is_keep_all": False}}
        assert extra(data)["speculative_config"] == data["speculative_config"]
        with pytest.raises(UsageError, match="is set by speculative.mode"):
            extra(data, speculative={"mode": "ngram", "max_draft_len": 4})
        more = {"speculative_config": {"is_keep_all": False}}
        made = extra(more, speculative={"mode": "ngram", "max_draft_len": 4})
        assert made["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 4, "is_keep_all": False}

    def test_names_that_are_known_by_their_beginning_are_taken_for_newest_releases_with_a_note(self) -> None:
        data = {"kv_cache_config": {"kv_pool_rebalance_interval": 3}, "moe_config": {"load_balancer": "x"}}
        made = facts("1.4", llm_api={"extra": data})
        assert any("kv_pool_rebalance_interval" in note for note in LlmArgs(made.release).notes(settings(made)))
        assert arguments(facts("1.4", llm_api={"moe_backend": "MEGAMOE_X"}))["moe_config"] == {"backend": "MEGAMOE_X"}
        with pytest.raises(UsageError, match="no such argument"):
            extra(data, "1.2")

    def test_what_was_not_read_in_older_source_is_noted_and_not_refused(self) -> None:
        made = facts("1.1", llm_api={"extra": {"env_overrides": {"A": "B"}}})
        assert any("unverified: env_overrides" in note for note in LlmArgs(made.release).notes(settings(made)))
        with pytest.raises(UsageError, match="no such argument"):
            extra({"orchestrator_type": "ray"}, "1.1")

    def test_what_lies_between_two_sources_is_taken_with_a_note(self) -> None:
        made = facts("1.3.0rc29", llm_api={"extra": {"kv_cache_config": {"disk_cache_size": 1}}})
        assert any(
            "unverified: kv_cache_config.disk_cache_size" in note
            for note in LlmArgs(made.release).notes(settings(made))
        )
        assert LlmArgs(find_release("1.2.1")).notes(settings(facts())) == []
        assert "concluded" in LlmArgs(find_release("1.0.0")).notes(settings(facts("1.0.0")))[0]


class TestTables:
    def test_sections_and_renames_lead_somewhere(self) -> None:
        for table in (TOP, *NESTED.values(), *(fields_of(name) for name in DECODING_TYPES)):
            for arg in table.values():
                assert not arg.section or arg.section in NESTED or arg.section == "speculative_config"
                assert not arg.renamed_to or arg.renamed_to in table
        for new in OLD_NAMES.values():
            head, _, tail = new.partition(".")
            assert head in TOP and (not tail or tail in NESTED[TOP[head].section])

    def test_every_argument_says_where_it_was_read_and_whether_it_was_concluded(self) -> None:
        for table in (TOP, *NESTED.values(), *(fields_of(name) for name in DECODING_TYPES)):
            for arg in table.values():
                assert arg.life.span.source
                assert arg.evidence in ("known", "inferred")

    def test_every_mode_has_a_decoding_type_in_every_release(self) -> None:
        for release in SERVING:
            for mode in MODES.values():
                states = [DECODING_TYPES[name].life.state(find_release(release)) for name in mode.decoding_types]
                assert states.count("present") == 1


class TestCommand:
    @pytest.mark.parametrize(
        ("release", "flag"), [("1.0", "--extra_llm_api_options"), ("1.1", "--extra_llm_api_options"), ("1.2", "--config"), ("1.4", "--config")]
    )  # fmt: skip
    def test_the_file_is_named_by_the_option_that_the_release_has(self, release: str, flag: str) -> None:
        command = serve_command(
            find_release(release), {}, model="./checkpoint", config="llm_api.yaml", host="127.0.0.1", port=0
        )
        assert command == [
            "trtllm-serve",
            "./checkpoint",
            flag,
            "llm_api.yaml",
            "--host",
            "127.0.0.1",
            "--port",
            "8000",
        ]

    def test_no_option_repeats_what_the_file_says(self) -> None:
        made = facts(parallel={"tp_size": 2}, limits={"max_beam_width": 2})
        arguments_ = arguments(made)
        command = serve_command(made.release, arguments_, model="m", config="c", host="h", port=1)
        taken = {FLAGS[word].argument for word in command if word in FLAGS and FLAGS[word].argument}
        assert not taken & {".".join(path) for path, _ in leaves(arguments_)}

    def test_several_nodes_go_through_the_launcher(self) -> None:
        command = serve_command(find_release("1.2"), {}, model="m", config="c", host="h", port=1, nodes=2)
        assert command[:2] == ["trtllm-llmapi-launch", "trtllm-serve"]

    def test_the_script_quotes_what_a_shell_would_take_apart(self) -> None:
        script = serve_script(["trtllm-serve", "a b;c"], find_release("1.2"))
        assert "exec trtllm-serve 'a b;c' \"$@\"\n" in script
