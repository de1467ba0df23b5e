"""Files, tokenizers, metrics, timers, limits, traces: what old code calls beside its algorithm."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from compat.utils import (
    base_config,
    checkpoint,
    device,
    fs,
    groupwise,
    import_utils,
    loggers,
    memory_utils,
    metric,
    model,
    net_utils,
    performance,
    profiler,
    py_functional,
    ray_utils,
    rollout_trace,
    runtime_env,
    tokenizer,
    torch_dtypes,
    torch_functional,
    tracking,
)
from compat.utils.config import validate_config
from compat.utils.errors import (
    MetricError,
    NotBuiltError,
    PartitionError,
    PromptLengthError,
    UnsupportedPathError,
)
from runtime.config import load_config
from runtime.environment import WORKER_ENV
from runtime.errors import ConfigError, DataError


def test_local_paths_are_copied_made_and_found(tmp_path):
    source = tmp_path / "a" / "b.txt"
    fs.makedirs(str(source.parent))
    source.write_text("x")
    assert fs.copy(str(source), str(tmp_path / "c.txt")) == str(tmp_path / "c.txt")
    assert fs.copy(str(source.parent), str(tmp_path / "folder")) == str(tmp_path / "folder")
    assert (tmp_path / "folder" / "b.txt").read_text() == "x"
    assert fs.exists(str(source))
    assert not fs.exists(str(tmp_path / "none"))
    assert fs.copy_to_local(str(source)) == fs.copy_local_path_from_hdfs(str(source)) == str(source)
    assert fs.copy_to_local("org/model") == "org/model"
    assert os.path.isdir(fs.local_mkdir_safe(str(tmp_path / "new" / "folder")))


def test_a_copy_in_memory_is_made_once(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w").write_text("1")
    there = fs.copy_to_local(str(tmp_path / "model"), use_shm=True)
    assert there.startswith("/dev/shm/")
    assert fs.copy_to_shm(str(tmp_path / "model")) == there
    assert (fs.Path(there) / "w").read_text() == "1"
    fs.shutil.rmtree(fs.Path(there).parent)


@pytest.mark.parametrize("call", [fs.exists, fs.makedirs, fs.copy_to_local, lambda path: fs.copy("/tmp/x", path)])
def test_hdfs_is_refused_by_name(call):
    with pytest.raises(UnsupportedPathError, match=r"hdfs://host/x.*hdfs dfs -get"):
        call("hdfs://host/x")


def test_tokenizer_of_the_tiny_model():
    found = tokenizer.hf_tokenizer("tiny://model")
    assert found.pad_token_id is not None
    assert tokenizer.hf_processor("tiny://model") is None
    ids = tokenizer.normalize_token_ids(found.apply_chat_template([{"role": "user", "content": "1"}], tokenize=True))
    assert ids
    assert all(type(token) is int for token in ids)


def test_a_tokenizer_without_padding_pads_with_its_end():
    class Bare:
        pad_token_id = pad_token = None
        eos_token_id, eos_token = 7, "</s>"

    with pytest.warns(UserWarning, match="no padding token"):
        tokenizer.set_pad_token_id(bare := Bare())
    assert (bare.pad_token_id, bare.pad_token) == (7, "</s>")


@pytest.mark.parametrize(
    "form", [[1, 2], (1, 2), [[1, 2]], {"input_ids": [1, 2]}, torch.tensor([[1, 2]]), np.array([1, 2])]
)
def test_token_ids_of_any_form(form):
    assert tokenizer.normalize_token_ids(form) == [1, 2]


@pytest.mark.parametrize("form", [None, "text", [["a"]], {"other": 1}])
def test_what_holds_no_token_ids_is_named(form):
    with pytest.raises(TypeError, match=r"token id"):
        tokenizer.normalize_token_ids(form)


def test_special_tokens_of_a_processor():
    class Processor:
        image_token_id, video_token = 5, "<v>"
        tokenizer = type("T", (), {"convert_tokens_to_ids": staticmethod({"<v>": 8}.get)})

    found = {name: tokenizer.get_processor_token_id(Processor(), name) for name in ("image", "video", "audio")}
    assert found == {"image": 5, "video": 8, "audio": None}
    assert tokenizer.get_processor_token_id(None, "image") is None


def test_tracking_writes_where_the_config_says(tmp_path, capsys):
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    run = tracking.Tracking("p", "e", ["console", "file", "tensorboard"], config)
    assert list(run.logger) == ["console", "jsonl", "tensorboard"]
    run.log({"actor/loss": np.float32(0.5), "note": "text", "n": torch.tensor(2)}, step=np.int64(3))
    run.log({"only": 1}, step=4, backend="jsonl")
    run.finish()
    run.finish()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"actor/loss": 0.5, "n": 2.0, "step": 3}, {"only": 1.0, "step": 4}]
    assert list((tmp_path / "tensorboard").iterdir())
    assert "step 4" not in capsys.readouterr().out


def test_an_unknown_backend_is_named(tmp_path):
    with pytest.raises(ConfigError, match="swanlab"):
        tracking.Tracking("p", "e", "swanlab", {"trainer": {"default_local_dir": str(tmp_path)}})


def test_samples_of_a_validation(monkeypatch):
    texts = []
    monkeypatch.setattr(SummaryWriter, "__init__", lambda *_: None)
    monkeypatch.setattr(SummaryWriter, "__exit__", lambda *_: None)
    monkeypatch.setattr(SummaryWriter, "add_text", lambda _, name, text, step: texts.append((name, text, step)))
    logger = tracking.ValidationGenerationsLogger(project_name="p", experiment_name="e")
    logger.log(["console", "tensorboard"], [["q", "a", 1.0], ["q2", "a2", 0.0]], 5)
    assert texts == [("val/generations", "q\n\na\n\n1.0\n\n---\n\nq2\n\na2\n\n0.0", 5)]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb"):
        logger.log(["wandb"], [["q", "a", 1.0]], 5)


def test_lines_of_steps_and_ranks(capsys, caplog):
    loggers.LocalLogger().log({"loss": 0.5, "text": "x"}, 2)
    loggers.LocalLogger(print_to_console=False).log({"loss": 0.5}, 3)
    loggers.print_rank_0("hello")
    loggers.print_with_rank("a", rank=1)
    loggers.print_with_rank("b", rank=1, log_only_rank_0=True)
    assert capsys.readouterr().out == "step:2 - loss:0.5\nhello\n[Rank 1] a\n"
    with caplog.at_level(logging.INFO):
        loggers.log_with_rank("m", 1, logging.getLogger("t"))
        loggers.log_with_rank("n", 1, logging.getLogger("t"), log_only_rank_0=True)
    assert caplog.messages == ["[Rank 1] m"]


def test_metrics_refuse_what_they_cannot_use():
    with pytest.raises(MetricError, match="mean, sum, min, max, not by 'median'"):
        metric.Metric("median")
    with pytest.raises(MetricError, match=r"shape \(2,\)"):
        metric.Metric("mean", torch.ones(2))
    with pytest.raises(MetricError, match="str"):
        metric.Metric("mean", ["x"])
    with pytest.raises(MetricError, match="sum cannot take one by max"):
        metric.Metric("sum", 1).append(metric.Metric("max", 2))
    with pytest.raises(MetricError, match=r"\[1, 2\]"):
        metric.Metric.aggregate_dp([metric.Metric("sum", 1), metric.Metric("sum", [1, 2])])


def test_metrics_collect_over_micro_batches():
    data: dict = {}
    for value in (1.0, 3.0):
        py_functional.append_to_dict(data, metric.Metric.from_dict({"loss": torch.tensor(value)}, "sum"), "actor/")
    assert metric.reduce_metrics(data) == {"actor/loss": 4.0}


def test_timers_add_up_and_reach_traces():
    seconds: dict = {}
    with torch.profiler.profile() as trace:
        for _ in range(2):
            with performance.marked_timer("gen", seconds, color="red"):
                time.sleep(0.01)
    with pytest.raises(KeyError), performance.simple_timer("failed", seconds):
        raise KeyError
    assert list(seconds) == ["gen"]
    assert seconds["gen"] >= 0.02
    assert "gen" in {event.key for event in trace.key_averages()}
    assert performance.reduce_timing(seconds) == seconds
    assert performance.gather_timing({"a": 1.0}) == {"a": [1.0]}
    assert performance.topk_reduce_ratio_min_max(1.0) == (-1.0, -1.0, -1.0)


def test_memory_lines(capsys):
    performance.log_gpu_memory_usage("before")

    @performance.GPUMemoryLogger("actor")
    def work(x):
        return x + 1

    assert work(1) == 2
    assert work.__name__ == "work"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["before", "actor Before work", "actor After work"]


def test_the_profiler_writes_a_trace_of_its_ranks(tmp_path):
    config = profiler.ProfilerConfig(tool="torch", enable=True, ranks=[1], save_path=str(tmp_path))
    for rank in (0, 1):
        extension = profiler.DistProfilerExtension(profiler.DistProfiler(rank, config))
        extension.start_profile()

        @profiler.DistProfiler.annotate("forward")
        def forward():
            return torch.ones(2).sum()

        forward()
        extension.stop_profile()
    assert [file.name for file in tmp_path.iterdir()] == ["rank1-0.json"]
    assert "forward" in (tmp_path / "rank1-0.json").read_text()
    with pytest.raises(NotBuiltError, match="nsys"):
        profiler.DistProfiler(0, profiler.ProfilerConfig(tool="nsys", enable=True))
    assert not profiler.DistProfiler(0).check_this_rank()


def test_the_device_is_one_story():
    name = device.get_device_name()
    assert name == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device.get_torch_device() is getattr(torch, name)
    assert device.get_nccl_backend() == {"cuda": "nccl", "cpu": "gloo"}[name]
    assert device.get_resource_name() == {"cuda": "GPU", "cpu": "CPU"}[name]
    assert not device.is_npu_available
    config = OmegaConf.create({"trainer": {"device": "npu"}})
    device.auto_set_device(config)
    assert config.trainer.device == ("cuda" if name == "cuda" else "npu")
    memory_utils.aggressive_empty_cache()


def test_objects_by_file_and_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Loss: pass\n")
    assert import_utils.load_extern_type(file_path=str(file), type_name="Loss") is import_utils.load_extern_object(
        str(file), "Loss"
    )
    assert import_utils.load_module(str(file), "mine_by_name").Loss is import_utils.load_extern_object(
        str(file), "Loss"
    )
    assert import_utils.load_extern_object("pkg://collections/abc", "Mapping") is import_utils.load_class_from_fqn(
        "collections.abc.Mapping"
    )
    with pytest.raises(ConfigError, match="'Nope'"):
        import_utils.load_extern_object(str(file), "Nope")
    with pytest.raises(ConfigError, match="dotted name"):
        import_utils.load_class_from_fqn("Loss", "loss")
    import_utils.import_external_libs(["json", "csv"])
    import_utils.import_external_libs(None)
    assert import_utils.is_trl_available() in (True, False)


def test_a_deprecated_thing_warns():
    @import_utils.deprecated("new")
    def old():
        return 1

    @import_utils.deprecated()
    class Old:
        pass

    with pytest.warns(FutureWarning, match="old is deprecated; use new"):
        assert old() == 1
    with pytest.warns(FutureWarning, match="Old is deprecated"):
        assert isinstance(Old(), Old)


def test_dictionaries():
    assert py_functional.rename_dict({"a": 1, "x/b": 2}, "x/") == {"x/a": 1, "x/b": 2}
    config = OmegaConf.create({"a": [1, {"b": 2}], "c": {"d": None}})
    assert py_functional.convert_to_regular_types({"it": (config,)}) == {"it": [{"a": [1, {"b": 2}], "c": {"d": None}}]}
    assert type(py_functional.convert_to_regular_types(config)["a"][1]) is dict
    assert py_functional.convert_nested_value_to_list_recursive({"a": [np.arange(2)]}) == {"a": [[0, 1]]}
    assert py_functional.NestedNamespace({"a": {"b": 1}}).a.b == 1
    with py_functional.temp_env_var("VERLIFT_TEST_VARIABLE", "1"):
        assert os.environ["VERLIFT_TEST_VARIABLE"] == "1"
    assert "VERLIFT_TEST_VARIABLE" not in os.environ


@pytest.mark.parametrize("use_signals", [False, True])
def test_a_function_under_a_limit(use_signals):
    @py_functional.timeout_limit(0.3, use_signals)
    def work(kind):
        if kind == "sleep":
            time.sleep(20)
        if kind == "fail":
            raise KeyError("why")
        return np.zeros(200_000)  # more than a pipe holds

    assert work("answer").shape == (200_000,)
    with pytest.raises(KeyError, match="why"):
        work("fail")
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"work took longer than 0\.3 s"):
        work("sleep")
    assert time.monotonic() - started < 10


def test_a_child_that_dies_is_named():
    with pytest.raises(RuntimeError, match="exit code 3"):
        py_functional.timeout_limit(5)(lambda: os._exit(3))()


def test_a_coroutine_function_from_anywhere():
    @ray_utils.auto_await
    async def double(x):
        await asyncio.sleep(0)
        return 2 * x

    def plain():
        return double(3)

    async def inside():
        return await double(2), plain()

    assert double(1) == 2
    assert asyncio.run(inside()) == (4, 6)
    assert ray_utils.auto_await(lambda: 5)() == 5
    assert ray_utils.get_event_loop() is ray_utils.get_event_loop()


class Spans:
    """A stand-in for MLflow."""

    def __init__(self):
        self.seen = []

    def start_span(self, name):
        spans = self

        class Span:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def set_attributes(self, attributes):
                spans.seen.append((name, attributes))

            def set_outputs(self, output):
                spans.seen.append((name, output))

        return Span()


class Loop:
    @rollout_trace.rollout_trace_op
    async def run(self, x):
        return x + 1

    @rollout_trace.rollout_trace_op
    def step(self, x):
        return x * 2


def test_traces_go_nowhere_unless_told_and_then_to_the_backend():
    rollout_trace.RolloutTraceConfig.reset()
    with rollout_trace.rollout_trace_attr(step=1):
        assert (asyncio.run(Loop().run(1)), Loop().step(2)) == (2, 4)
    config = rollout_trace.RolloutTraceConfig.get_instance()
    config.backend, config.client = "mlflow", (spans := Spans())
    with rollout_trace.rollout_trace_attr(step=1, name="sample"):
        asyncio.run(Loop().run(1))
    with rollout_trace.rollout_trace_attr(step=2, trace=False):
        Loop().step(2)
    assert spans.seen[0] == ("sample", {"step": 1, "validate": False, "experiment_name": None})
    assert spans.seen[1:] == [("Loop.run", {"inputs": "((1,), {})"}), ("Loop.run", "2")]
    rollout_trace.RolloutTraceConfig.reset()
    with pytest.raises(NotBuiltError, match="arize"):
        rollout_trace.RolloutTraceConfig.init("p", "e", "arize")


def test_addresses_and_ports():
    assert net_utils.is_ipv4("10.0.0.1")
    assert net_utils.is_valid_ipv6_address("::1")
    assert not net_utils.is_ipv6("10.0.0.1")
    port, holder = net_utils.get_free_port("127.0.0.1", with_alive_sock=True)
    assert holder.getsockname()[1] == port
    holder.close()
    assert net_utils.get_free_port("127.0.0.1")[1] is None


def test_the_last_checkpoint(tmp_path):
    assert checkpoint.find_latest_ckpt_path(None) is None
    assert checkpoint.find_latest_ckpt_path(str(tmp_path)) is None
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("12\n")
    assert checkpoint.find_latest_ckpt_path(str(tmp_path)) is None
    (tmp_path / "global_step_12").mkdir()
    assert checkpoint.find_latest_ckpt_path(str(tmp_path)) == str(tmp_path / "global_step_12")
    tracker.write_text("twelve")
    with pytest.raises(DataError, match="'twelve'"):
        checkpoint.find_latest_ckpt_path(str(tmp_path))


@pytest.mark.parametrize("variable", checkpoint.EXPIRY_VARIABLES)
def test_a_machine_that_is_taken_back(monkeypatch, variable):
    assert not checkpoint.should_save_ckpt_esi(100)
    for seconds_left, expected in [(50, True), (130, True), (1000, False), (-5, False)]:
        monkeypatch.setenv(variable, str(time.time() + seconds_left))
        assert checkpoint.should_save_ckpt_esi(100, save_ckpt_duration=60) is expected
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(DataError, match="'soon'"):
        checkpoint.should_save_ckpt_esi(100)


def test_the_environment_of_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/alias")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    variables = runtime_env.get_ppo_ray_runtime_env()["env_vars"]
    assert variables["PYTHONPATH"] == "/alias"
    assert "NCCL_DEBUG" not in variables
    assert set(WORKER_ENV) - set(os.environ) <= set(variables)


def test_a_config_that_is_set_once():
    @base_config.dataclass
    class Mine(base_config.BaseConfig):
        lr: float = 0.1

    mine = Mine(lr=0.5)
    assert dict(mine) == {"_target_": "", "lr": 0.5}
    assert mine.get("other", 3) == 3
    with pytest.raises(base_config.FrozenInstanceError, match=r"Mine\.lr"):
        mine.lr = 1.0


@pytest.mark.parametrize("name", ["bf16", "bfloat16", torch.bfloat16])
def test_names_of_precisions(name):
    assert torch_dtypes.PrecisionType.to_dtype(name) is torch.bfloat16
    assert torch_dtypes.PrecisionType.is_bf16(name)
    assert torch_dtypes.PrecisionType.to_str(torch.float32) == "fp32"
    with pytest.raises(NotBuiltError, match="fp7"):
        torch_dtypes.PrecisionType.to_dtype("fp7")


def test_a_prompt_that_must_not_be_cut():
    ids = torch.ones(1, 5, dtype=torch.long)
    with pytest.raises(PromptLengthError, match="5 tokens are more than max_length=3"):
        torch_functional.postprocess_data(ids, ids, 3, 0)
    with pytest.raises(NotBuiltError, match="'both'"):
        torch_functional.postprocess_data(ids, ids, 3, 0, truncation="both")


def test_one_value_a_row_over_its_tokens():
    nested = torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    spread = torch_functional.expand_as_nested(torch.tensor([1.0, 2.0]), nested)
    assert [row.tolist() for row in spread.unbind()] == [[1, 1], [2, 2, 2]]
    with pytest.raises(PartitionError, match="3 values and 2 rows"):
        torch_functional.expand_as_nested(torch.ones(3), nested)


def test_group_labels_and_scores_must_be_as_many():
    with pytest.raises(PartitionError, match="2 scores and 1 group"):
        groupwise.group_mean_std(torch.ones(2), torch.zeros(1))


def test_model_helpers(capsys):
    network = torch.nn.Linear(50, 40)
    assert model.get_model_size(network) == (2.04, "K")
    model.print_model_size(network, "net")
    assert capsys.readouterr().out == "net contains 2.04K parameters\n"
    config = py_functional.NestedNamespace({"a": 1, "b": {"c": 2}})
    model.update_model_config(config, {"a": 3, "b": {"c": 4}})
    assert (config.a, config.b.c) == (3, 4)
    mask = model.create_random_mask(torch.zeros(20, 10), 0.6, 0.3, 0.2)
    assert mask.sum(1).min() >= 2
    assert mask.sum(1).max() <= 6
    assert ((mask.diff(dim=1) != 0).sum(1) <= 2).all()
    rows = [{"pixels": torch.ones(1, 2)}, None, {"pixels": torch.zeros(2, 2), "grid": None}]
    assert model.extract_multi_modal_inputs(rows)["pixels"].shape == (3, 2)
    assert model.extract_multi_modal_inputs(rows, [0, 9])["pixels"].shape == (1, 2)
    assert model.get_generation_config(model_folder()) is not None


def model_folder() -> str:
    from runtime.fs import copy_to_local

    return copy_to_local("tiny://model")


def test_a_config_is_checked():
    config = OmegaConf.create(OmegaConf.to_container(load_config("tiny").config))
    validate_config(config, use_reference_policy=False, use_critic=False)
    config.data.train_batch_size = 7
    with pytest.raises(ConfigError, match=r"7"):
        validate_config(config, use_reference_policy=False, use_critic=False)
