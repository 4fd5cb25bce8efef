"""Hugging Face configurations, tables of layers and plain NumPy code as networks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.workload.graph import Conv, Gemm

LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "hidden_act": "silu"}  # fmt: skip
CONFIGS = {
    # Parameters as Hugging Face publishes them for the weights of each model.
    "llama": ({**LLAMA, "vocab_size": 128256, "max_position_embeddings": 8192}, 8_030_261_248),
    "mistral": ({**LLAMA, "vocab_size": 32000, "max_position_embeddings": 32768,
                 "sliding_window": 4096}, 7_241_732_096),
    "mixtral": ({**LLAMA, "vocab_size": 32000, "max_position_embeddings": 32768,
                 "num_local_experts": 8, "num_experts_per_tok": 2}, 46_702_792_704),
    "gpt2": ({}, 124_439_808),
    "bert": ({}, 110_106_428),
    "vit": ({"id2label": {str(i): "" for i in range(1000)}}, 86_567_656),
    "t5": ({"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}, 222_903_552),
    "qwen2": ({"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
               "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936,
               "max_position_embeddings": 32768, "tie_word_embeddings": True}, 494_032_768),
    "gemma": ({"hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1,
               "num_hidden_layers": 18, "intermediate_size": 16384, "head_dim": 256,
               "vocab_size": 256000, "max_position_embeddings": 8192}, 2_506_172_416),
    "opt": ({}, 125_239_296),
    "phi3": ({"hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 32,
              "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096},
             3_821_079_552),
    "starcoder2": ({"hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 2,
                    "num_hidden_layers": 30, "intermediate_size": 12288, "vocab_size": 49152,
                    "max_position_embeddings": 16384}, 3_030_371_328),
    "deepseek_v3": ({"vocab_size": 129280, "max_position_embeddings": 4096,
                     "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
                     "intermediate_size": 18432, "kv_lora_rank": 512, "q_lora_rank": 1536,
                     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                     "n_routed_experts": 256, "num_experts_per_tok": 8,
                     "moe_intermediate_size": 2048, "n_shared_experts": 1,
                     "routed_scaling_factor": 2.5, "first_k_dense_replace": 3},
                    671_026_404_352),
}  # fmt: skip


def _config(folder, fields):
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_has_the_published_parameters(tmp_path, kind):
    fields, parameters = CONFIGS[kind]
    model = rl.load_model(_config(tmp_path, {"model_type": kind, **fields}))
    assert model.forward(1).parameters == parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llamma"}, "did you mean 'llama'"),
        ({"model_type": 3}, "model type 3"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": None}, "missing"),
        ({"hidden_act": "wish"}, "did you mean 'swish'"),
        ({"num_key_value_heads": 5}, "kv_heads"),
        ({"hidden_size": 4097}, "heads"),
        ({"num_hidden_layers": -1}, "above 0"),
    ],
)
def test_what_is_not_known_is_an_error(tmp_path, change, message):
    fields = {"model_type": "llama", **CONFIGS["llama"][0], **change}
    with pytest.raises(rl.ConfigError, match=message):
        rl.load_model(_config(tmp_path, fields))


def test_fields_of_a_configuration_can_be_replaced(tmp_path):
    path = _config(tmp_path, {"model_type": "gpt2"})
    model = rl.load_model(path, {"sequence": 128, "layers": 2})
    assert model.forward(1).tensors["tokens"].shape == (1, 128)
    with pytest.raises(rl.ConfigError, match="sequense"):
        rl.load_model(path, {"sequense": 128})


def test_a_table_of_scalesim_has_its_layers():
    path = "docs/examples/scalesim/layers.csv"
    model = rl.load_model(path)
    from ridgeline.workload.trace.layers import read_layers

    macs = sum(row.loops.macs for row in read_layers(path))
    assert model.forward(4).flops() == 2 * 4 * macs
    first = 2 * 4 * read_layers(path)[0].loops.macs
    assert model.training(4).flops() == 3 * 2 * 4 * macs - first  # of images, no gradient


def test_a_table_of_deepbench_has_its_kernels(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text(
        "w,h,c,n,k,f_w,f_h,pad_w,pad_h,stride_w,stride_h,fwd_time (usec)\n"
        "700,161,1,4,32,20,5,0,0,2,2,10\n224,224,3,8,64,3,3,1,1,1,1,3\n"
    )
    loops = [op.loops for op in rl.load_model(path).forward(1).ops if op.loops]
    assert loops == [
        Conv(4, 1, 161, 700, 32, 5, 20, (2, 2)),
        Conv(8, 3, 224, 224, 64, 3, 3, (1, 1), (1, 1)),
    ]
    path.write_text("m,n,k,a_t,b_t\n1760,16,64,False,False\n")
    (loops,) = [op.loops for op in rl.load_model(path).forward(1).ops if op.loops]
    assert loops == Gemm(16, 1760, 64)
    path.write_text("m,n,k\n1760,x,64\n")
    with pytest.raises(rl.ConfigError, match=r"kernels\.csv:2: n must be a whole number"):
        rl.load_model(path)


def _mlp(x, w1, b1, w2, b2):
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def test_a_perceptron_in_numpy_is_that_of_the_zoo():
    arrays = [np.empty(s) for s in ((8, 784), (784, 256), (256,), (256, 10), (10,))]
    model = rl.trace_numpy(_mlp, *arrays, loss="cross-entropy")
    for batch in (1, 8, 33):
        graph = model.training(batch, "bf16-mixed")
        assert graph.parameters == 784 * 256 + 256 + 2560 + 10
        assert graph.flops() == 2 * batch * (2 * 784 * 256 + 3 * 2560)
    kinds = [op.kind for op in model.forward(8).ops]
    assert kinds == ["gemm", "bias", "relu", "gemm", "bias", "loss"]


def test_attention_in_numpy_counts_its_products():
    def attention(x, p):
        n, s, d = x.shape
        q, k, v = ((x @ p[i]).reshape(n, s, 4, d // 4).transpose(0, 2, 1, 3) for i in "qkv")
        scores = np.einsum("nhsd,nhtd->nhst", q, k) / np.sqrt(d // 4)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = scores / scores.sum(axis=-1, keepdims=True) @ v
        return np.mean((y.transpose(0, 2, 1, 3).reshape(n, s, d) @ p["o"] + x) ** 2)

    model = rl.trace_numpy(attention, np.empty((2, 6, 16)), {i: np.empty((16, 16)) for i in "qkvo"})
    assert model.forward(3).flops() == 2 * 3 * (4 * 6 * 16 * 16 + 2 * 6 * 6 * 16)
    assert model.forward(3).parameters == 4 * 256


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: x if (x @ w).sum() > 0 else w, "looks at the values"),
        (lambda x, w: np.linalg.svd(x @ w), "numpy.svd cannot be traced"),
        (lambda x, w: x @ w[:2], "do not fit"),
        (lambda x, w: 1.0, "returns float"),
        (lambda x, w: (x * 2).sum(), "no trained parameter"),
    ],
)
def test_numpy_code_that_cannot_be_traced_says_why(function, message):
    with pytest.raises(rl.RidgelineError, match=message):
        rl.trace_numpy(function, np.empty((4, 3)), np.empty((3, 3)))


def test_nothing_is_computed():
    huge = np.broadcast_to(np.zeros(1, np.float32), (10**6, 10**6))
    model = rl.trace_numpy(lambda x, w: x @ w, huge, huge)
    assert model.forward(10**6).flops() == 2 * 10**18
