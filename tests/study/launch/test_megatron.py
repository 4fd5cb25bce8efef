from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, launch_choices, read_launch

DATA = Path(__file__).parents[2] / "data" / "launch"


def script(tmp_path: Path, *more: str, program: str = "pretrain_gpt.py", **change: str) -> Path:
    """Write a script with arguments of its own, of which `change` replaces some; "" leaves out."""
    arguments = {
        "num-layers": "24", "hidden-size": "2048", "num-attention-heads": "16",
        "seq-length": "2048", "max-position-embeddings": "2048", "micro-batch-size": "1",
        "global-batch-size": "64", "vocab-size": "50257", "bf16": " ",
    }  # fmt: skip
    arguments |= {name.replace("_", "-"): value for name, value in change.items()}
    words = [f"--{name} {value}" for name, value in arguments.items() if value]
    path = tmp_path / "job.sh"
    path.write_text(f"torchrun --nproc_per_node 8 {program} {' '.join([*words, *more])}\n")
    return path


def read(tmp_path: Path, *more: str, **change: str) -> LaunchJob:
    return read_launch(script(tmp_path, *more, **change))


def test_a_script() -> None:
    job = read_launch(DATA / "megatron.sh")
    assert (job.model, job.software, job.devices) == ("gpt3-1.3b", "megatron-core", 16)
    assert job.plan == {
        "tensor": 4, "data": 4, "global_batch": 64, "micro_batch": 4, "sequence": True,
        "precision": "bf16-mixed", "zero_stage": 1,
    }  # fmt: skip
    assert job.model_fields == {"vocabulary": 50688}
    assert job.software_settings["overlap.gradients"] is True
    assert job.software_settings["kernels.attention"] == "flash"
    assert [(s.name, s.value, s.line) for s in job.unread] == [("--no-such-argument", "3", 29)]
    became = {s.name: (s.line, s.became) for s in job.settings}
    assert became["--num-layers"] == (11, "model.layers=24")
    assert became["--global-batch-size"] == (19, "plan.global_batch=64")
    assert became["--data-path"][1] == "no effect on a step"


def test_variables_of_a_script_may_be_given() -> None:
    job = read_launch(DATA / "megatron.sh", set_={"NODES": "4", "PRECISION": "half"})
    assert (job.devices, job.plan["data"], job.plan["precision"]) == (32, 8, "fp16-mixed")


def test_arguments_of_a_test() -> None:
    job = read_launch(DATA / "megatron.yaml")
    assert (job.model, job.devices) == ("mixtral-8x7b", None)
    assert job.plan["virtual_stages"] == 8
    assert job.plan["schedule"] == "interleaved"
    assert (job.plan["expert"], "expert_tensor_parallel" in job.plan) == (8, False)
    assert job.plan["recompute"] == "selective"
    assert job.software_settings["moe.grouped_gemm"] is True
    assert not job.unread
    assert "the file does not say how many devices there are" in job.notes


@pytest.mark.parametrize(
    ("more", "change", "message"),
    [
        ("--tensor-model-parallel-size 3", {}, "8 devices cannot be divided by tensor 3"),
        ("", {"global_batch_size": "63"}, "global batch 63 cannot be divided"),
        ("--pipeline-model-parallel-size 8", {"num_layers": "20"}, "20 layers cannot be divided"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5", {},
            "24 layers cannot be divided into 2 stages of parts of 5",
        ),
        ("--expert-model-parallel-size 8", {}, "in a network without experts"),
        ("--num-experts 6 --expert-model-parallel-size 4", {}, "6 experts cannot be divided"),
        ("--fp16", {}, "both bf16 and fp16"),
        ("", {"num_attention_heads": "15"}, "15 heads do not divide 2048"),
        ("--group-query-attention --num-query-groups 3", {}, "3 query groups do not divide 16"),
        ("", {"max_position_embeddings": "1024"}, "over 1024 positions"),
        ("--num-experts 4 --moe-layer-freq [0]*3+[1]*20", {}, "is of 23 layers"),
        ("--num-experts 4 --moe-layer-freq 2", {}, "every 2th layer"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*9|t*9L'", {},
            "the layout has 18 layers, the network 24",
        ),
        ("--hybrid-layer-pattern M*M-", {}, "pattern is of 4 layers"),
        ("--hybrid-layer-pattern MG*", {}, "layers of kind 'G'"),
        ("--position-embedding-type relative", {}, "'relative' are not described"),
        ("--spec my.layers spec", {}, "layers of a specification of its own"),
        ("--optimizer sophia", {}, "'sophia' is not modelled"),
        ("--grpo-group-size 4", {}, "reinforcement learning"),
        ("", {"num_layers": "$LAYERS"}, r"needs LAYERS, .* --set LAYERS="),
        ("--retro-add-retriever", {}, "retrieval"),
        ("", {"hidden_size": "wide"}, "expected a whole number"),
        ("", {"seq_length": ""}, "does not give seq-length"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, more: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, more, **change)
    assert error.value.file == str(tmp_path / "job.sh")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODEL_ARGS=(--num-layers 24 --hidden-size 2048 --num-attention-heads 16)\n",
         "model arguments only"),
        ("source models/ours.sh\necho --num-layers --hidden-size --micro-batch-size\n",
         r"reads others that are not there \(models/ours.sh\)"),
        ("A=--num-layers\n# --hidden-size --num-attention-heads --micro-batch-size\n"
         "torchrun pretrain_gpt.py $ARGS\n", "arguments of the model are in ARGS"),
        ("X='--rollout-batch-size 8'\n# --num-layers --hidden-size\npython train.py $X\n",
         "reinforcement learning"),
        ("# --num-layers --hidden-size\npython pretrain_vlm.py\n", "images and text"),
        ("# --hidden-size\npython pretrain_gpt.py --num-layers 2\n"
         "python pretrain_gpt.py --num-layers 4\n", "starts 2 jobs .* --set launch=1"),
    ],
)  # fmt: skip
def test_files_that_start_no_training_of_one_kind(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.sh"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_launch(path, framework="megatron")


def test_one_of_several_launches(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(
        path.read_text() + path.read_text().replace("--seq-length 2048", "--seq-length 1024")
    )
    assert launch_choices(path) == ("launch=1", "launch=2")
    assert read_launch(path, set_={"launch": "2"}).model_fields["sequence"] == 1024


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("--recompute-granularity full --recompute-method uniform", "recompute", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0",
         "recompute", None),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         "recompute", "block:3"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
         "recompute", "uniform:2"),
        ("--recompute-activations", "recompute", "selective"),
        ("--checkpoint-activations", "recompute", "full"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero_stage", 2),
        ("--use-torch-fsdp2", "zero_stage", 3),
        ("--context-parallel-size 2", "cp_comm_type", "ring"),
        ("--context-parallel-size 2 --cp-comm-type all_gather", "cp_comm_type", "all-gather"),
        ("--fp8-format hybrid", "precision", "fp8-mixed"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "precision", "fp8-dynamic"),
        ("--fp4-format e2m1", "precision", "nvfp4-mixed"),
        ("--cpu-offloading --cpu-offloading-num-layers 2", "offload", "all"),
        ("--optimizer adam", "optimizer", "adamw"),
        ("--optimizer dist_muon", "optimizer", "muon"),
        ("--optimizer-cpu-offload", "optimizer_offload", 1.0),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.4", "optimizer_offload", 0.4),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
         "optimizer_state", "bf16"),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8",
         "optimizer_state", "fp8-e4m3"),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16",
         "optimizer_state", "fp16"),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "optimizer_state", None),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3",
         "virtual_stages", 3),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*6|(t*6|)*2t*6L'",
         "virtual_stages", 2),
        ("--pipeline-model-parallel-size 2 --account-for-loss-in-pipeline-split",
         "stage_balance", "ends"),
        ("--num-experts 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
         "expert_tensor_parallel", 1),
    ],
)  # fmt: skip
def test_fields_of_the_plan(tmp_path: Path, more: str, field: str, value: object) -> None:
    assert read(tmp_path, more).plan.get(field) == value


@pytest.mark.parametrize(
    ("more", "path", "value"),
    [
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "overlap.tensor", "pieces"),
        ("--no-gradient-accumulation-fusion", "gradients.accumulation_fusion", False),
        ("--grad-reduce-in-bf16", "gradients.main_grads", "narrow"),
        ("--ddp-bucket-size 1000", "gradients.bucket", "4000 B"),
        ("--cross-entropy-loss-fusion", "kernels.cross_entropy", "fused"),
        ("--attention-backend unfused", "kernels.attention", "separate"),
        ("--cuda-graph-impl full_iteration", "host.launch_time", "0 s"),
        ("--num-experts 8 --moe-token-dispatcher-type flex", "moe.dispatch", "node-limited"),
        ("--num-experts 8 --moe-permute-fusion", "moe.combine", "gathered"),
        ("--num-experts 8 --overlap-moe-expert-parallel-comm", "overlap.moe_a2a", True),
    ],
)
def test_settings_of_the_stack(tmp_path: Path, more: str, path: str, value: object) -> None:
    assert read(tmp_path, more).software_settings[path] == value


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        (
            "--swiglu --ffn-hidden-size 5504",
            "feed_forward",
            {"width": 5504, "activation": "swiglu"},
        ),
        ("--num-experts 8 --moe-router-topk 1", "mixture", {"experts": 8, "top_k": 1}),
        ("--multi-latent-attention --kv-lora-rank 64", "latent_attention", {"rank": 64}),
        ("--embed-layernorm", "embedding_norm", True),
        ("--hidden-dropout 0.0", "dropout", 0.0),
    ],
)
def test_fields_of_the_network(tmp_path: Path, more: str, field: str, value: object) -> None:
    found = read(tmp_path, more).model_fields[field]
    if isinstance(value, dict):
        found = {key: found[key] for key in value}
    assert found == value


def test_what_is_not_modelled_is_said_and_left_unread(tmp_path: Path) -> None:
    job = read(tmp_path, "--offload-optimizer-states")
    assert {s.name for s in job.unread} == {"--offload-optimizer-states"}
    assert sum("is not modelled" in note for note in job.notes) == 1


def test_instances_of_the_optimizer_share_parts_of_the_ranks(tmp_path: Path) -> None:
    job = read(tmp_path, "--use-megatron-fsdp --num-distributed-optimizer-instances 2")
    assert job.plan["hybrid_shard_size"] == 4


def test_encoders(tmp_path: Path) -> None:
    path = script(tmp_path, program="pretrain_bert.py", hidden_size="1024", seq_length="512",
                  max_position_embeddings="512", vocab_size="30522")  # fmt: skip
    job = read_launch(path)
    assert (job.model, job.model_fields) == ("bert-large", {"vocabulary": 30592})
    path = script(
        tmp_path, "--encoder-num-layers 12 --decoder-num-layers 12 --encoder-seq-length 512"
        " --decoder-seq-length 128", program="pretrain_t5.py", num_layers="", seq_length="",
        hidden_size="768", num_attention_heads="12", max_position_embeddings="512",
    )  # fmt: skip
    job = read_launch(path)
    assert (job.model, job.model_fields["target"]) == ("t5-base", 128)
