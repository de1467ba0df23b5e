"""``verlift parity calibrate``: measure how far a run's model stages spread, and propose tolerances."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from verlift.options import ConfigName, ConfigPath, Overrides, read_config
from verlift.parity.app import TrainerChoice, Trainers, app, guarded


@app.command()
def calibrate(
    overrides: Overrides = None,
    config_name: ConfigName = "ppo_trainer",
    config_path: ConfigPath = None,
    repeats: Annotated[int, typer.Option(min=0, help="Plain repeats, beside one run for each perturbation.")] = 2,
    perturb: Annotated[bool, typer.Option(help="Also other kernels, threads and micro-batches.")] = True,
    safety: Annotated[float, typer.Option(min=1, help="Times the spread that was measured.")] = 4.0,
    trainer: TrainerChoice = Trainers.V1,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each run.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the tolerances.")] = Path("tolerances.yaml"),
) -> None:
    """Run one trainer again and again, in ways that change bits and no meaning, and propose tolerances by stage."""

    def work() -> int:
        from parity_tests.calibrate import Perturbation, measure, perturbations, proposed, repeated
        from parity_tests.storage import written_beside
        from parity_tests.tolerances import as_yaml
        from runtime.errors import ConfigError

        if trainer is Trainers.BOTH:
            raise ConfigError("calibrate repeats the run of one trainer; give --trainer legacy or --trainer v1")
        config = read_config(config_name, config_path, overrides)
        ways = [Perturbation("nothing (the first run)"), *(Perturbation(f"repeat {n + 1}") for n in range(repeats))]
        ways += perturbations(config) if perturb else []
        arguments = ["--config-name", config_name, *(["--config-path", str(config_path)] if config_path else [])]
        arguments += [*(["--steps", str(steps)] if steps else []), *(overrides or [])]
        with TemporaryDirectory(prefix="verlift-calibrate-") as folder:
            base, *others = repeated(arguments, ways, Path(folder), trainer.value)
            spreads = measure(base, {way.name: other for way, other in zip(ways[1:], others, strict=True)})
        lines = [f"{place}: max {s.max_abs:.2g} mean {s.mean_abs:.2g} ({s.widest})" for place, s in spreads.items()]
        told = ", ".join(way.name for way in ways[1:])
        comment = f"{safety:g} times the spread of {trainer.value} over {told}:\n" + "\n".join(lines)
        text = as_yaml(proposed(spreads, safety), comment)
        with written_beside(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(text, end="")
        return 0

    raise typer.Exit(guarded(work))
