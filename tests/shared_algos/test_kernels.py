"""The compiled loops against the torch expressions beside them, bit by bit; compiling them; sharing them out."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos import kernels
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.errors import AlgorithmError
from shared_algos.kept_tokens import KeptTokens
from shared_algos.reductions import all_finite, masked, masked_mean, masked_sum, masked_var, masked_whiten
from shared_algos.scan import gae_scan, reverse_scan
from shared_algos.segments import Segments, as_bool

ROOT = Path(__file__).parents[2]
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float32, torch.float64])
LONG = Segments.from_lengths([0, 70_000, 1, 200_000, 0, 150_000, 3, 99_999, 0])  # enough tokens for three threads


def bits(column):
    """-0.0 is not 0.0; a NaN equals any other, as its sign depends on the order of the operands."""
    column = column.masked_fill(column.isnan(), torch.nan) if column.is_floating_point() else column
    return column.dtype, tuple(column.shape), column.numpy().tobytes()


def by_torch(compute):
    """What ``compute`` gives where the compiled loops take nothing, as on another device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "take", lambda *_columns: False)
        return compute()


def same_bits(compute):
    compiled, plain = compute(), by_torch(compute)
    assert [bits(column) for column in compiled] == [bits(column) for column in plain]


def computed(segments, mask, values, rewards):
    """Every public function that has a compiled loop, of columns ``[T]``; what is masked is NaN."""
    values, mask = values.masked_fill(mask == 0, torch.nan), mask.bool()
    kept = KeptTokens.of(segments, mask, segments.sum(mask).nonzero().squeeze(1).flip(0))
    per_row = torch.arange(segments.num_rows, dtype=values.dtype) / 7
    return [
        as_bool(rewards),
        as_bool(mask.long()),
        torch.tensor([all_finite(values), all_finite(rewards)]),
        segments.sum(rewards),
        segments.sum(mask.long()),
        segments.sum(mask),
        segments.sum(values, mask),
        segments.spread(per_row),
        segments.spread(segments.lengths),
        segments.spread(per_row, mask),
        segments.following(rewards),
        *gae_scan(rewards, rewards.flip(0), segments, 0.99, 0.9),
        reverse_scan(rewards, segments, 0.95),
        segments.sum(values > 0, mask),
        masked(values, mask),
        masked_sum(values, mask, segments),
        masked_mean(values, mask, segments),
        masked_var(values, mask, segments),
        masked_whiten(values, mask, segments),
        kept.gather(values),
        kept.gather_sums(rewards),
        kept.scatter(kept.gather(values), torch.float32),
    ]


@settings(max_examples=200, deadline=None)
@given(seed=seeds, dtype=dtypes)
def test_loops_have_the_bits_of_torch(random_batch, seed, dtype):
    batch = random_batch(seed, dtype)
    same_bits(lambda: computed(batch.segments, batch.mask, batch.values, batch.rewards))


@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [0, 1, 0]])
@pytest.mark.parametrize("kept", [0, 1])
def test_loops_of_no_token_and_of_one(lengths, kept):
    column = torch.full((sum(lengths),), 0.1)
    mask = torch.full((sum(lengths),), kept)
    same_bits(lambda: computed(Segments.from_lengths(lengths), mask, column, column))


@pytest.mark.parametrize("name", ADVANTAGES.names())
@settings(max_examples=50, deadline=None)
@given(seed=seeds, dtype=dtypes)
def test_advantages_have_the_bits_of_torch(random_batch, name, seed, dtype):
    batch = random_batch(seed, dtype)

    def compute():
        outputs = compute_advantages(name, batch.inputs(), AdvantageConfig(0.99, 0.95), torch.float64)
        return outputs.advantages, outputs.returns

    try:
        plain = by_torch(compute)
    except AlgorithmError:
        return
    assert [bits(column) for column in compute()] == [bits(column) for column in plain]


def test_minus_zero_and_infinities_pass_through():
    segments, values = Segments.from_lengths([2, 1, 2]), torch.tensor([-0.0, -0.0, -0.0, torch.inf, -torch.inf])
    mask = torch.tensor([True, False, True, True, True])
    kept = KeptTokens.of(segments, mask, torch.arange(3))
    same_bits(
        lambda: (
            segments.sum(values),
            segments.sum(values, mask),
            segments.spread(values[:3], mask),
            segments.following(values),
            reverse_scan(values, segments, 0.5),
            *gae_scan(values, values, segments, 0.5, 0.5),
            kept.gather_sums(values),
            kept.scatter(kept.gather(values), torch.float64),
        )
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.uint8])
def test_dtypes_that_numba_does_not_take(dtype):
    segments, values = Segments.from_lengths([2, 0, 3]), torch.tensor([1, 2, 3, 4, 5], dtype=dtype)
    assert segments.sum(values).tolist() == [3, 0, 12]
    assert segments.spread(values[:3]).equal(values[[0, 0, 2, 2, 2]])
    assert reverse_scan(values, segments, 1.0).tolist() == [3, 2, 12, 9, 5]
    assert segments.following(values).tolist() == [2, 0, 4, 5, 0]


def test_columns_that_are_strided_or_negated():
    every_second = torch.arange(10.0, dtype=torch.float64)[::2]
    negated = torch.complex(torch.zeros(5), torch.arange(5.0)).conj().imag
    segments = Segments(torch.tensor([0, 9, 2, 9, 5, 9])[::2])
    assert negated.is_neg()
    assert segments.sum(every_second).tolist() == [2, 18]
    assert segments.sum(negated).tolist() == [-1, -9]
    assert segments.spread(every_second[:4:2]).tolist() == [0, 0, 4, 4, 4]


def test_a_column_of_the_wrong_length_is_refused():
    """A loop would read beyond its end."""
    segments, short = Segments.from_lengths([2, 3]), torch.zeros(4)
    for call in (
        lambda: segments.sum(short),
        lambda: segments.sum(torch.zeros(5), short),
        lambda: segments.spread(torch.zeros(1)),
        lambda: segments.spread(torch.zeros(2), short),
        lambda: segments.following(short),
        lambda: reverse_scan(short, segments, 1.0),
        lambda: gae_scan(torch.zeros(5), short, segments, 1.0, 1.0),
        lambda: masked_whiten(torch.zeros(5), short, segments),
        lambda: KeptTokens.of(segments, short.bool(), torch.arange(2)),
    ):
        with pytest.raises(ValueError, match="where its segments have"):
            call()
    with pytest.raises(ValueError, match="row 1 has no mask-1 token"):
        KeptTokens.of(segments, torch.tensor([1, 1, 0, 0, 0]).bool(), torch.arange(2))


def test_gradients():
    """Sum and spread are each other's derivative, twice over."""
    segments, mask = Segments.from_lengths([3, 0, 2]), torch.tensor([1, 0, 1, 1, 0])
    tokens = torch.randn(5, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: segments.sum(x).square(), tokens)
        assert check(lambda x: segments.sum(x, mask).square(), tokens)
        assert check(lambda x: segments.spread(x).square(), rows)
        assert check(lambda x: segments.spread(x, mask).square(), rows)
        assert check(lambda x: masked(x, mask).square(), tokens)
    assert torch.autograd.gradcheck(lambda x: masked_whiten(x, mask, segments), tokens)
    assert torch.autograd.gradcheck(lambda x: reverse_scan(x, segments, 0.9), tokens)
    assert torch.autograd.gradcheck(lambda x: gae_scan(x, x, segments, 0.9, 0.8)[1], tokens)


def test_gradients_keep_their_dtype_and_stop_at_the_mask():
    segments, mask = Segments.from_lengths([2, 1]), torch.tensor([1, 0, 1])
    for dtype in (torch.bfloat16, torch.float32):
        tokens = torch.tensor([1.0, torch.nan, 3.0], dtype=dtype, requires_grad=True)
        segments.sum(tokens, mask).square().sum().backward()
        assert tokens.grad.dtype == dtype
        assert tokens.grad.tolist() == [2, 0, 6]


def long_column(seed=0):
    return torch.randn(LONG.num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def long_results():
    column, kept = long_column(), long_column(1) > -1
    tokens = KeptTokens.of(LONG, kept, LONG.sum(kept).nonzero().squeeze(1))
    moved = tokens.gather_sums(column)
    return LONG.sum(column), reverse_scan(column, LONG, 0.9), moved, tokens.scatter(moved, torch.float64)


def test_bits_do_not_depend_on_threads():
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(long_results())
    torch.set_num_threads(1)
    plain = by_torch(long_results)
    for of_threads in results:
        assert all(map(torch.equal, of_threads, plain))


def test_loops_run_from_several_threads_and_after_a_fork():
    expected = long_results()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [future.result() for future in [pool.submit(long_results) for _ in range(8)]]
        assert all(all(map(torch.equal, result, expected)) for result in found)
        child = multiprocessing.get_context("fork").Process(target=exit_well_if_sums_are, args=(expected[0],))
        child.start()
        child.join(60)
        if child.exitcode is None:
            child.kill()
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(1)


def exit_well_if_sums_are(expected):
    """The right sums, by threads of its own."""
    right = LONG.sum(long_column()).tolist() == expected.tolist()
    os._exit(0 if right and threading.active_count() > 1 else 1)


SUMS = """
import torch
from shared_algos.segments import Segments
print(Segments.from_lengths([2, 1]).sum(torch.tensor([1.0, 2.0, 3.0])).tolist())
"""


def run_python(code, folder, **environment):
    """The output of a new process that imports ``shared_algos`` from ``folder``."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


def test_importing_does_not_import_numba():
    assert run_python("import sys, shared_algos.advantages; print('numba' in sys.modules)", ROOT) == "False"


def test_the_next_process_finds_the_code_in_the_cache(tmp_path):
    expected = "[3.0, 3.0]"
    assert run_python(SUMS, ROOT, NUMBA_CACHE_DIR=str(tmp_path)) == expected
    code = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert [path.name.split("-")[0] for path in code] == ["kernels.row_sums_int64_float32_float64"]
    assert run_python(SUMS, ROOT, NUMBA_CACHE_DIR=str(tmp_path)) == expected
    assert code == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}


def test_without_a_folder_for_the_cache_loops_are_compiled_anew(tmp_path):
    """An installation that cannot be written to, and no home. A file in the folder's place stops the superuser too."""
    shutil.copytree(ROOT / "shared_algos", tmp_path / "shared_algos", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shared_algos" / "__pycache__").touch()
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": "/dev/null"}
    assert run_python(SUMS, tmp_path, **nowhere) == "[3.0, 3.0]"


def test_loops_run_uncompiled_where_numba_is_switched_off():
    assert run_python(SUMS, ROOT, NUMBA_DISABLE_JIT="1") == "[3.0, 3.0]"


def test_a_damaged_cache_is_passed_by(tmp_path):
    run_python(SUMS, ROOT, NUMBA_CACHE_DIR=str(tmp_path))
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(b"")
    assert run_python(SUMS, ROOT, NUMBA_CACHE_DIR=str(tmp_path)) == "[3.0, 3.0]"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_same_bits():
    column, segments = long_column()[:1000], Segments.from_lengths([0, 300, 1, 699, 0])
    mask = long_column(1)[:1000] > -1
    rows = segments.sum(mask).nonzero().squeeze(1)

    def compute(device):
        on, values, kept = Segments(segments.offsets.to(device)), column.to(device), mask.to(device)
        tokens = KeptTokens.of(on, kept, rows.to(device))
        moved = tokens.gather_sums(values)
        scanned = reverse_scan(moved, tokens.segments, 0.9)
        whitened = masked_whiten(values, kept, on)
        return [on.sum(values), on.sum(values, kept), moved, scanned, tokens.scatter(scanned, torch.float32), whitened]

    assert [bits(result.cpu()) for result in compute("cuda")] == [bits(result) for result in compute("cpu")]
