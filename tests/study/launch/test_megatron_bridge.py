from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import launch_choices, read_launch

DATA = Path(__file__).parents[2] / "data" / "launch"
RECIPES = DATA / "megatron_bridge_recipe.py"
TABLE = DATA / "megatron_bridge_table.py"


def test_the_recipes_of_a_file() -> None:
    assert [each.split("_")[3] for each in launch_choices(RECIPES)] == ["16gpu", "16gpu", "8gpu"]
    with pytest.raises(ConfigError, match="3 recipes; choose one: --set recipe=NAME"):
        read_launch(RECIPES)
    with pytest.raises(ConfigError, match="no recipe 'llama3'"):
        read_launch(RECIPES, set_={"recipe": "llama3"})


def test_a_recipe() -> None:
    name = "llama3_8b_pretrain_16gpu_h100_fp8cs_config"
    job = read_launch(RECIPES, set_={"recipe": name})
    assert (job.model, job.devices, job.device) == ("llama3-8b", 16, "h100-sxm5-80gb")
    assert job.plan == {
        "tensor": 2, "pipeline": 1, "context": 1, "data": 8, "sequence": True,
        "global_batch": 128, "micro_batch": 1, "precision": "fp8-dynamic", "zero_stage": 1,
    }  # fmt: skip
    assert job.software == "megatron-bridge"
    assert job.software_settings["gradients.main_grads"] == "narrow"
    assert job.software_settings["overlap.tensor"] == "pieces"
    lines = {s.name: s.line for s in job.settings}
    assert lines["model.tensor_model_parallel_size"] == 8
    assert any("llama3_8b_pretrain_config of other files" in note for note in job.notes)
    assert any("how long sequences are" in note for note in job.notes)


def test_a_recipe_whose_sizes_are_in_another_file_is_refused() -> None:
    name = "llama3_8b_pretrain_8gpu_h100_bf16_config"
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size.*in another file"):
        read_launch(RECIPES, set_={"recipe": name})
    set_ = {"tensor_model_parallel_size": "1", "pipeline_model_parallel_size": "1"}
    job = read_launch(RECIPES, set_={"recipe": name, "micro_batch_size": "2", **set_})
    assert (job.plan["micro_batch"], job.plan["data"]) == (2, 8)


def test_a_table_of_workloads() -> None:
    assert len(launch_choices(TABLE)) == 2
    job = read_launch(TABLE, set_={"recipe": "DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_CS_V1"})
    assert (job.model, job.devices, job.device) == ("deepseek-v3", 256, "b200")
    assert job.plan["stage_balance"] == "even"
    assert (job.plan["recompute"], job.plan["expert_tensor_parallel"]) == ("mla_up_proj", 1)
    assert any("61 layers are not a multiple of 16" in note for note in job.notes)


def test_a_matrix_of_runs() -> None:
    path = DATA / "megatron_bridge_llama3_70b.yaml"
    assert launch_choices(path) == ("recipe=h100-64-bf16", "recipe=h100-64-fp8_cs")
    job = read_launch(path, set_={"recipe": "h100-64-bf16"})
    assert (job.model, job.devices, job.plan["context"]) == ("llama3-70b", 64, 2)
    assert not job.unread


def test_a_launch_line() -> None:
    path = DATA / "megatron_bridge.sh"
    assert launch_choices(path) == ("launch=1", "launch=2")
    job = read_launch(path, set_={"launch": "2"})
    assert (job.model, job.devices) == ("gpt-oss-20b", 16)
    assert (job.plan["tensor"], job.plan["pipeline"], job.plan["data"]) == (4, 2, 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "model:\n  seq_length: 1\ntrain:\n  train_iters: 1\nddp:\n  x: 1\n",
         "overrides of a recipe only"),
        ("a.py", "import megatron.bridge\n", "no recipe"),
        ("a.py", "import megatron.bridge\ndef f(:\n", "not Python"),
        ("a.py", "import megatron.bridge\ndef deepseek_v4_pretrain_config():\n  return base()\n",
         "no network of the catalogue is 'deepseek_v4'"),
        ("a.sh", "# Megatron-Bridge\npython run_recipe.py --recipe ours x=1\n",
         "not one of a name that says its network"),
        ("a.yaml", "perf_matrix:\n  h100:\n    num_gpus_8:\n      common: {tp: 1}\n"
         "      bf16: {pp: 1}\n", "does not say which network"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_launch(path)


def test_a_recipe_that_begins_with_the_common_one_has_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import megatron.bridge\ndef ours_pretrain_config():\n  cfg = _pretrain_common()\n"
        "  cfg.model = AutoBridge.from_hf_pretrained('Qwen/Qwen3-8B').to_megatron_provider()\n"
        "  cfg.dataset.seq_length = 2048\n  return cfg\n"
    )
    job = read_launch(path)
    assert (job.model, job.model_fields) == ("qwen3-8b", {"sequence": 2048})
    assert (job.plan["global_batch"], job.plan["micro_batch"]) == (32, 2)
    assert any("as all recipes of Megatron-Bridge begin" in note for note in job.notes)


def test_recipes_of_the_library_sum_gradients_wide_those_of_performance_do_not() -> None:
    """`bf16_mixed` of the library has grad_reduce_in_fp32; performance recipes switch it off."""
    library = DATA / "megatron_bridge.sh"
    wide = read_launch(library, set_={"launch": "1"}).software_settings["gradients.main_grads"]
    assert wide == "wide"
    set_ = {"launch": "1", "grad_reduce_in_fp32": "false"}
    job = read_launch(library, set_=set_)
    assert job.software_settings["gradients.main_grads"] == "narrow"


def test_muon_of_a_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import megatron.bridge\ndef llama3_8b_pretrain_config():\n"
        "  cfg = _pretrain_common()\n  a, b = distributed_muon_with_cosine_annealing()\n"
        "  return cfg\n",
        "utf-8",
    )
    assert read_launch(path).plan["optimizer"] == "muon"
