"""From settings to an engine: what each role is made of.

The one place that joins model, cache, runner and hand-over. Loading, compiling and warming up
happen later, in `engine.start()`, on the device thread.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import jax

from dsv4.cache import CacheSpec, cache_spec
from dsv4.checkpoint.fingerprint import model_fingerprint
from dsv4.checkpoint.load import Weights, load_model
from dsv4.config import ModelConfig
from dsv4.text.tokenizer import load_tokenizer
from pallas_kernels.dispatch import Implementation, RefusedError
from serve.binding import layout_table
from serve.config import ConfigError, EngineSettings, TransferSettings
from serve.engine.buckets import page_buckets
from serve.engine.generate_engine import GenerateEngine
from serve.engine.loaded import LoadedModel
from serve.engine.prefiller import LocalPrefiller
from serve.engine.request import Engine
from serve.engine.row_check import DependentRows
from serve.engine.runner import Runner
from serve.progress import Progress, Stage

log = logging.getLogger(__name__)

DEFAULT_MAX_CONTEXT = 8192
AUTO_PAGE_POOL_BYTES = 1 << 30  # --pages 0 stops here, but holds at least one longest request


def build_engine(
    role: str,
    engine: EngineSettings,
    transfer: TransferSettings,
    progress: Progress,
) -> Engine:
    """The engine of a role, not started.

    Args:
      role: "prefill", "decode" or "local".
      engine: model, memory and compiled shapes; `model` must be set.
      transfer: the hand-over, for prefill and decode.
      progress: where loading and warm-up report to.

    Raises:
      ConfigError: naming a setting that the role can't do with or that contradicts another.
    """
    if engine.model is None:
        raise ConfigError("model", None, "a checkpoint folder")
    load = _loader(role, engine, engine.model, progress)
    shown = _shown(engine, transfer)
    if role == "local":
        return GenerateEngine(
            role,
            load,
            LocalPrefiller(),
            max_waiting=engine.max_queue,
            settings=shown,
            verify_pages_s=engine.verify_pages_s,
        )
    from serve import handover  # `local` needs no NIXL

    if role == "decode":
        return handover.decode_engine(load, engine, transfer, shown)
    if role == "prefill":
        return handover.prefill_engine(load, engine, transfer, shown)
    raise ConfigError("role", role, "prefill, decode or local")


def _loader(
    role: str, settings: EngineSettings, folder: Path, progress: Progress
) -> Callable[[], LoadedModel]:
    def load() -> LoadedModel:
        _configure_jax(settings)
        dtype = _compute_dtype(settings)
        with progress.stage("load weights", 0, unit="B") as stage:
            config, model = load_model(
                folder,
                compute_dtype=dtype,
                weights=cast(Weights, settings.weights),
                mtp=settings.draft_tokens > 0,
                progress=_bytes_reporter(stage),
            )
        max_context = _max_context(settings, config)
        spec = _cache_spec(settings, config, dtype)
        num_slots = settings.max_requests + 1
        num_pages = _num_pages(settings, spec, max_context) + 1
        table = layout_table(spec, num_pages=num_pages, num_slots=num_slots)
        runner = Runner(
            config,
            model,
            spec,
            num_pages=num_pages,
            num_slots=num_slots,
            chunk_tokens=settings.chunk_tokens,
            decode_rows=settings.decode_rows,
            buckets=page_buckets(page_tokens=settings.page_tokens, max_context=max_context),
            kernels=_kernels(settings),
        )
        log.info(
            "model %s: context %d, %d pages of %d tokens, %d slots, pools %.1f MB",
            folder.name,
            max_context,
            num_pages - 1,
            spec.page_tokens,
            num_slots - 1,
            runner.pool_bytes() / 1e6,
        )
        return LoadedModel(
            runner=runner,
            tokenizer=load_tokenizer(folder, config),
            fingerprint=model_fingerprint(folder),
            compute_dtype=dtype,
            layout=table,
            max_context=max_context,
            warm_up=functools.partial(_warm_up, role, runner, progress),
        )

    return load


def _warm_up(role: str, runner: Runner, progress: Progress) -> None:
    """Compiles and runs every program the role will use, so that no request waits for a compile.

    Raises:
      ConfigError: kernels were named that do not take this engine's arrays, or rows of a decode
        step depend on their order on this device.
    """
    steps = runner.warm_up_steps(
        prefill=role != "decode",
        decode=role != "prefill",
        export=role == "prefill",
        admit=role == "decode",
    )
    with progress.stage("compile and warm up", len(steps)) as stage:
        for name, step in steps:
            try:
                step()
            except RefusedError as error:
                raise ConfigError(
                    "--kernels", runner.kernels, f"auto or reference, since {error}"
                ) from None
            except DependentRows as error:
                raise ConfigError(
                    "--decode-rows",
                    runner.decode_rows,
                    f"another number, such as 16, since {error}",
                ) from error
            stage.advance(1, name)


def _configure_jax(settings: EngineSettings) -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_compilation_cache_dir", str(settings.compile_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _compute_dtype(settings: EngineSettings) -> str:
    """float32 on a CPU, where bfloat16 is slow; bfloat16 elsewhere."""
    if settings.compute_dtype != "auto":
        return settings.compute_dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def _cache_spec(settings: EngineSettings, config: ModelConfig, dtype: str) -> CacheSpec:
    auto = "f32" if dtype == "float32" else "bf16"
    return cache_spec(
        config,
        kv_format=auto if settings.kv_format == "auto" else settings.kv_format,
        index_k_format=auto if settings.index_k_format == "auto" else settings.index_k_format,
        page_tokens=settings.page_tokens,
        draft_tokens=settings.draft_tokens,
    )


def _kernels(settings: EngineSettings) -> Implementation | None:
    return None if settings.kernels == "auto" else cast(Implementation, settings.kernels)


def _max_context(settings: EngineSettings, config: ModelConfig) -> int:
    limit = config.max_position_embeddings
    if settings.max_context > limit:
        raise ConfigError("max_context", settings.max_context, f"at most the model's {limit}")
    return settings.max_context or min(limit, DEFAULT_MAX_CONTEXT)


def _num_pages(settings: EngineSettings, spec: CacheSpec, max_context: int) -> int:
    """Pages without scratch: the setting, or enough for every slot within the automatic budget."""
    if settings.pages:
        return settings.pages
    per_request = -(-max_context // spec.page_tokens)
    page_bytes = sum(buffer.unit_bytes for buffer in spec.paged())
    affordable = AUTO_PAGE_POOL_BYTES // max(page_bytes, 1)
    return max(per_request, min(settings.max_requests * per_request, affordable))


def _bytes_reporter(stage: Stage) -> Callable[[int, int], None]:
    """Turns cumulative (done, total) reports into a stage's increments."""
    reported = 0

    def report(done: int, total: int) -> None:
        nonlocal reported
        if not reported:
            stage.expect(total)
        stage.advance(done - reported)
        reported = done

    return report


def _shown(*settings: object) -> dict[str, str]:
    return {
        field.name: str(getattr(group, field.name))
        for group in settings
        for field in dataclasses.fields(group)  # pyright: ignore[reportArgumentType]
    }
