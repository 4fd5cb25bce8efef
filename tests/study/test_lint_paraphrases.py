"""Each rule is found under other names of columns, units and shapes of tables; honest ones are not."""

# ruff: noqa: E501 - a file of a case is one line
from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.study.lint import lint

# Code, suffix of the file, its content. A mapping or list is written as JSON.
DISHONEST: list[tuple[str, str, object]] = [
    ("H1", ".csv", "# of GPUs,Batch/GPU,Speedup vs 1 GPU,Time per iteration (ms),scaling\n1,32,1,80,weak\n16,32,15.1,85,weak\n128,32,117,90,weak\n"),
    ("H1", ".json", {"title": "Faster training with more workers: weak scaling", "points": [
        {"workers": 8, "minibatch": 256, "hours": 10.0}, {"workers": 64, "minibatch": 2048, "hours": 1.4}]}),
    ("H1", ".yaml", "scaling: weak\nseries:\n  - {nodes: 1, total_batch_size: 512, tokens_per_sec: 1.1e5}\n"
                    "  - {nodes: 32, total_batch_size: 16384, tokens_per_sec: 3.3e6}\n"),
    ("H1", ".csv", "accelerators;global batch;scaling;step time (s);gradient compression\n8;256;strong;0.4;1\n64;256;strong;0.06;100\n"),
    ("H2", ".csv", "method,training accuracy (%),epochs,stdev\nSGD,99.1,90,0.1\nLARS,99.6,90,0.1\n"),
    ("H2", ".json", {"target": {"metric": "top1", "split": "train", "value": 0.98}, "accuracy": 0.981, "hours": 3}),
    ("H2", ".yaml", "headline: Our optimizer reaches a lower loss\nrows:\n  - {name: adam, final_loss: 0.31, minutes: 40}\n"
                    "  - {name: ours, final_loss: 0.12, minutes: 40}\n"),
    ("H3", ".json", {"system": "ours", "time_to_train_h": 1.2, "val_acc": 0.76, "hyperparameter_trials": 300, "n_runs": 1}),
    ("H3", ".csv", "system,minutes,top-1,tuning runs\nA,62,76.2,0\nB,55,76.1,120\n"),
    ("H3", ".yaml", "result: {top1: 76.1, minutes: 41}\ntuning_runs: null\n"),
    ("H4", ".csv", "gpu model,images/sec,val_top1\nK80,52,75.9\nH100,2900,75.9\n"),
    ("H4", ".json", {"baseline": {"device": "Xeon E5", "release_year": 2014, "throughput": 30, "top5": 92},
                     "ours": {"device": "TPU v3", "release_year": 2018, "throughput": 2000, "top5": 92}}),
    ("H4", ".yaml", "sides:\n  - {chip: A, technology_nm: 28, latency_ms: 9}\n  - {chip: B, technology_nm: 5, latency_ms: 2}\n"),
    ("H5", ".json", {"claim": "Training is 4x faster", "scope": "all-reduce kernel in isolation", "speedup": 4.0,
                     "baseline_ms": 12}),
    ("H5", ".yaml", "title: End-to-end training speed-up\ncoverage: 0.42\nspeedup: 2.6\nbaseline_step_ms: 410\n"),
    ("H5", ".csv", "kernel,time before (us),time after (us),training speedup\nattention,900,300,3\nlayernorm,80,40,2\n"),
    ("H6", ".csv", "model,io,images/s,time to train (h),top1\nresnet50,excluded,2900,12.5,76.0\n"),
    ("H6", ".json", {"title": "Throughput of AlexNet", "images_per_s": 21000, "bytes_per_image": 110000,
                     "storage_bandwidth": 5e8, "precision": "fp16"}),
    ("H6", ".yaml", "title: Time to solution of BERT\nhours: 3.1\nf1: 90.9\nsynthetic_data: true\ndata_source: synthetic\n"),
    ("H7", ".csv", "chip,TOPS\nA,400\nB,1600\n"),
    ("H7", ".json", {"systems": [{"name": "A", "tflops": 312, "ops_definition": "dense fp16"},
                                 {"name": "B", "tflops": 1979, "ops_definition": "fp8 with 2:4 sparsity"}]}),
    ("H7", ".yaml", "title: 1.1 exaops on climate data\naiops: 1.1e18\nnodes: 4560\n"),
    ("H8", ".csv", "perf_batch_size,acc_batch_size,images_per_sec,test_acc\n32768,256,90000,76.3\n"),
    ("H8", ".json", {"speed": {"images_per_s": 9000, "options": "fp8, no dropout"},
                     "quality": {"top1": 76.3, "options": "fp32, dropout"}}),
    ("H8", ".csv", "metric,precision,value\nthroughput,fp8,9000\ntop1 accuracy,fp32,76.3\n"),
    ("H9", ".json", {"dataset": "CIFAR-10", "resolution": "512x512", "images_per_s": 900, "test_acc": 0.95}),
    ("H9", ".csv", "network,sequence_length,canonical sequence length,tokens/s\nbert-large,16384,512,9000\n"),
    ("H9", ".yaml", "gflops_per_image: 1000\nreference_gflops_per_image: 1\nimages_per_s: 3\ntop1: 76\n"),
    ("H10", ".csv", "processors,wall time (h),iterations,Pflop/s,flops counting,precision\n64,2,1000,1.1,useful dense,fp32\n"
                    "256,2,3900,4.3,useful dense,fp32\n1024,2,15000,16,useful dense,fp32\n"),
    ("H10", ".yaml", "title: 3.9x the training throughput on 4x the GPUs in the same time budget\n"
                     "time_budget_h: 1\ngpus: [8, 32]\nsamples: [1.1e6, 4.3e6]\nscaling: weak\n"),
    ("H11", ".csv", "ranks,minibatch,epoch time (s),test error,ci95\n1,64,900,24.1,0.1\n8,512,120,24.2,0.1\n"),
    ("H11", ".json", {"title": "Strong scaling to 128 nodes", "nodes": [1, 16, 128], "batch_size": [256, 4096, 32768],
                      "seconds_per_epoch": [1200, 80, 11], "validation_accuracy": [76.3, 76.2, 75.1]}),
    ("H12", ".csv", "# title: comparison with the state of the art\nmethod,val top1 (%)\nSOTA,77.1\nours,77.4\n"),
    ("H12", ".yaml", "claim: Faster than all previous work\nrows:\n  - {work: prior work, system: prior work, minutes: 20}\n"
                     "  - {system: ours, minutes: 12}\n"),
    ("H12", ".json", {"system": "ours", "baseline": "ResNet-18 of 2016", "baseline_dominated": True, "minutes": 4, "top1": 71}),
    ("C1", ".json", {"target_accuracy": 0.759, "entries": [{"name": "a", "minutes": 9, "best_reached_accuracy": 0.768},
                                                            {"name": "b", "minutes": 30, "best_reached_accuracy": 0.760}]}),
    ("C1", ".csv", "system,SLA (ms),minimum latency (ms),requests/s\nours,10,2,900\nrival,10,9.1,40\n"),
    ("C2", ".csv", "code,best time (s),number of runs\nA,1.21,50\nB,1.19,50\n"),
    ("C2", ".yaml", "title: Best of 20 runs\nsystem: A\nstep_time_ms: 81\n"),
    ("C2", ".json", {"n_runs": 10, "aggregation": "min", "latency_ms": 4.1}),
    ("C3", ".yaml", "title: 2.2 times the performance per dollar\nrows:\n  - {name: A, perf_per_dollar: 2.2}\n  - {name: B, perf_per_dollar: 1.0}\n"),
    ("C3", ".json", {"headline": "The most efficient chip: best TOPS per watt", "chips": [
        {"name": "A", "inferences_per_watt": 9, "throughput_per_watt": 9, "throughput": 100},
        {"name": "B", "inferences_per_watt": 5, "throughput_per_watt": 5, "throughput": 900}]}),
    ("C4", ".json", {"accuracy_threshold": 0.93, "eval_every_iterations": 1, "minutes_to_accuracy": 2.8}),
    ("C4", ".csv", "epoch,val_acc,threshold\n10,92.1,93\n11,93.01,93\n12,92.4,93\n13,92.8,93\n14,93.2,93\n"),
    ("C4", ".yaml", "target_accuracy: 0.759\nconsecutive_evals: 1\ntime_to_accuracy_min: 14\n"),
    ("C5", ".csv", "system,seed,test_acc\nbaseline,1,0.940\nours,1337,0.946\n"),
    ("C5", ".yaml", "seed_selection: best on the test set\ntest_accuracy: 0.95\n"),
    ("C5", ".json", {"seeds_run": [0, 1, 2, 3, 4], "seed": 3, "top1": 76.9}),
    ("C6", ".csv", "# title: Method B is superior for deep learning\nmethod,dataset,test_acc,minutes,stdev\nA,MNIST,99.0,3,0.1\nB,MNIST,99.2,3,0.1\n"),
    ("C6", ".yaml", "claim: Generalizes to all networks\nn_datasets: 1\ntest_accuracy: 0.99\nstdev: 0.001\n"),
    ("P1", ".json", {"figure": {"title": "Scaling of Inception, strong, batch 4096, 24 images/s on one GPU", "xlabel": "GPUs", "ylabel": "speed-up",
                                "yscale": "log", "xscale": "log", "error_bars": True, "ideal_line": False}}),
    ("P1", ".yaml", "mark: line\nencoding:\n  x: {field: gpus, scale: {type: log}}\n  y: {field: speedup, scale: {type: log}}\n"
                    "caption: strong scaling; 1 GPU takes 80 ms; bands are 95 % intervals\n"),
    ("P2", ".json", {"mark": "bar", "encoding": {"y": {"field": "accuracy", "scale": {"domain": [97.65, 97.95]}}},
                     "caption": "mean of 5 seeds ± sd"}),
    ("P2", ".yaml", "chart_type: bar\ny_axis_label: images/s\ny_axis_min: 2500\ny_axis_max: 2900\nerror_bars: yes\n"),
    ("P2", ".yaml", "plot: {type: bar, y_label: throughput, y_axis_starts_at_zero: false, error_bars: true}\n"),
    ("P3", ".json", {"plot": {"ylabel": "Speedup", "xlabel": "nodes", "yscale": "linear", "error_bars": True}}),
    ("P4", ".yaml", "plot: {ylabel: Step time (ms), xlabel: batch size, error_bars: false}\n"),
    ("P4", ".json", {"chart": {"y_label": "images/sec", "yscale": "linear", "y_min": 0}}),
    ("P5", ".csv", "gpus,global_batch,step_time_s,p05,p95,largest validated gpus\n512,1024,9,8,10,1024\n8192,1024,0.8,0.6,1,1024\n"),
    ("P5", ".yaml", "title: simulated strong scaling, batch 4096\ncalibrated_range: [8, 256]\ndevices: [8, 4096]\nbatch: [4096, 4096]\nstep_ms: [900, 4]\n"),
    ("P6", ".json", {"caption": "Performance observed on 16 nodes, error bars: sd", "source": "ridgeline simulation", "step_ms": 41}),
    ("P6", ".yaml", "title: Benchmarked on 8 x H100\nprovenance: analytical model\ntokens_per_s: 91000\n"),
]  # fmt: skip

HONEST: list[tuple[str, object]] = [
    (".csv", "gpus,batch_per_gpu,scaling,images/s,top1\n8,32,weak,1085,76.4\n64,32,weak,8420,76.3\n"),
    (".csv", "n_gpus,batch size,time (s),std\n1,256,80,1\n2,256,41,1\n4,256,22,1\n"),
    (".csv", "layer,time_us,flops\nconv1,41,1e9\nfc,12,2e8\n"),
    (".csv", "system,images/s,images/s/W,images/s/$,images/s/mm2\nA,2800,7,0.3,3.4\nB,3100,5.5,0.2,4.3\n"),
    (".json", {"n_runs": 20, "statistic": "median", "p05": 80, "p95": 84, "step_time_ms": 81}),
    (".json", {"title": "Accuracy of ours on CIFAR-10", "dataset": "CIFAR-10", "seeds": [0, 1, 2], "mean_test_accuracy": 0.95, "stdev": 0.01}),
    (".json", {"figure": {"ylabel": "step time (ms)", "y_min": 0, "y_max": 90, "error_bars": True, "title": "medians of 20 runs"}}),
    (".yaml", "title: GEMM kernel on one device\nscope: kernel\nspeedup: 1.4\nbaseline_us: 41\n"),
    (".yaml", "title: Training step 1.2 times as fast\nscope: training step\nspeedup: 1.2\nbaseline_ms: 410\nio_modelled: true\n"),
    (".yaml", "title: Attention is 4 times as fast; it covers 40 % of the step, Amdahl bound 1.43\ncoverage: 0.4\nspeedup: 4\nbaseline_ms: 9\n"),
    (".yaml", "time_budget_h: 1\ntitle: one run\nval_acc: 0.76\n"),
    (".yaml", "title: simulated, not measured\nsource: simulated\nstep_ms: 40\n"),
    (".csv", "seed,test_acc\n0,0.94\n1,0.95\n2,0.945\n"),
    (".json", {"tuning_runs": 40, "total_gpu_hours_all_runs": 900, "val_top1": 76.2, "minutes": 50}),
    (".yaml", "plot: {ylabel: speedup, xlabel: gpus, yscale: log, ideal_line: true, linear_inset: true, error_bars: true,"
              " caption: one GPU takes 80 ms}\n"),
]  # fmt: skip


def written(tmp_path: Path, suffix: str, content: object) -> Path:
    file = tmp_path / f"case{suffix}"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.mark.parametrize(("code", "suffix", "content"), DISHONEST)
def test_paraphrases_are_caught_by_exactly_their_code(
    code: str, suffix: str, content: object, tmp_path: Path
) -> None:
    report = lint(written(tmp_path, suffix, content))
    assert report.codes == (code,), [finding.found for finding in report.findings]


@pytest.mark.parametrize(("suffix", "content"), HONEST)
def test_honest_statements_are_left_alone(suffix: str, content: object, tmp_path: Path) -> None:
    report = lint(written(tmp_path, suffix, content))
    assert report.codes == (), [finding.found for finding in report.findings]
    assert not report.unread
