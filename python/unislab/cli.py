"""The command ``unislab``.

Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted.  An error is one line
on the standard error.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command, turn what it raises into one line, and return the exit code."""
    try:
        return cli.main(args=arguments, prog_name="unislab", standalone_mode=False) or 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        _complain(error.format_message().replace("\n", " "))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        # Whoever read us has enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        _complain(" ".join(_words(error).split()) or type(error).__name__)
        return 1


def _words(error: BaseException) -> str:
    """The text of an error; of the system's the file and what is wrong, without its number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(text: str) -> None:
    print(f"unislab: {text}", file=sys.stderr)


def _show_warning(message: Any, *rest: Any, **named: Any) -> None:
    _complain(f"note: {message}")


# ---- what commands share ------------------------------------------------------------------


def _load(name: str, lenient: bool) -> Any:
    """A trace from a file, standard input or the package, or a workload by name."""
    import unislab as us

    known = [*us.datasets.names(), *us.workloads.names()]
    folder = os.path.isdir(name)
    if folder and name not in known:
        raise click.BadParameter(f"{name!r} is a directory, expected a file or a name")
    if name == "-" or (os.path.exists(name) and not folder):
        if name.endswith(".npz"):
            return us.Trace.load(name)
        trace = us.Trace.read(name, lenient=lenient)
        if trace.skipped:
            lines = "line that is no event was"
            if trace.skipped > 1:
                lines = "lines that are no events were"
            _complain(f"note: {trace.skipped} {lines} skipped")
        return trace
    if name in us.datasets.names():
        return us.datasets.load(name)
    kind = name.partition(":")[0]
    if kind in us.workloads.names():
        return _checked(partial(us.workloads.make, name))
    near = difflib.get_close_matches(kind, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(known)}"
    raise click.BadParameter(f"no file {name!r} and nothing shipped of that name; {hint}")


def _trace(name: str, lenient: bool) -> Any:
    import unislab as us

    loaded = _load(name, lenient)
    if not isinstance(loaded, us.Trace):
        raise click.BadParameter(f"{name} is a workload of the package, expected a trace")
    return loaded


def _checked(call: Callable[[], Any]) -> Any:
    """Turn a wrong value into an error of the command line."""
    try:
        return call()
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _policy_names(ctx: click.Context, parameter: click.Parameter, value: str) -> Any:
    import unislab as us
    from unislab._entries import read_entry, unknown_policy
    from unislab.baseline import BASELINES

    if value == "all":
        return "all"
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name in BASELINES:
            raise click.BadParameter(f"{name} is no policy: give it by --baselines {name}")
        policy = _checked(partial(read_entry, name)).policy
        if policy not in us.policies():
            raise click.BadParameter(str(unknown_policy(policy, us.policies())))
    return names


def _policy_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    import unislab as us
    from unislab._entries import unknown_policy

    name = value.strip()
    if "," in name or name == "all":
        raise click.BadParameter(f"{parameter.opts[0]} takes one policy, not {value!r}")
    policy, colon, tunables = name.partition(":")
    if colon and policy in us.policies():
        given = " ".join(f"--set {pair}" for pair in tunables.split(":"))
        hint = f"; its tunables go by {given}" if parameter.opts[0] == "--policy" else ""
        raise click.BadParameter(f"{parameter.opts[0]} takes the name, {policy!r}, alone{hint}")
    if name not in us.policies():
        raise click.BadParameter(str(unknown_policy(name, us.policies())))
    return name


def _explained(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else _policy_name(ctx, parameter, value)


def _baseline_names(ctx: click.Context, parameter: click.Parameter, value: str) -> Any:
    from unislab.baseline import BASELINES

    if value == "all":
        return list(BASELINES)
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in BASELINES:
            raise click.BadParameter(f"no baseline {name!r}; expected all, {', '.join(BASELINES)}")
    return names


def _time(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from unislab.sizes import parse_time

    if value is None:
        return None
    try:
        parse_time(value)
    except ValueError:
        try:
            return f"{float(value)} s"
        except ValueError:
            raise click.BadParameter(f"{value!r} is no time; expected '0.5 s' or '200ms'") from None
    return value


def _memory(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from unislab.sizes import parse_size

    if value is not None:
        _checked(partial(parse_size, value))
    return value


def _machine(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """A modelled machine by name, file or grid."""
    return None if value is None else _checked(partial(_find_machine, value))


def _find_machine(name: str) -> Any:
    import unislab as us

    if os.path.isfile(name):
        return us.Machine.from_json(name)
    sides = name.split("x")
    if len(sides) == 3 and all(side.isdecimal() for side in sides):
        return us.Machine.grid(*map(int, sides))
    try:
        return us.Machine.profile(name)
    except ValueError as error:
        known = str(error).partition(";")[0]
        raise ValueError(f"{known}, a file, or NODESxDOMAINSxCPUS such as 2x1x8") from None


def _picture(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """A file that can be written, known before anything is measured."""
    if value is None:
        return None
    from matplotlib.backend_bases import FigureCanvasBase

    folder, kinds = os.path.dirname(value) or ".", FigureCanvasBase.get_supported_filetypes()
    if not os.path.isdir(folder):
        raise click.BadParameter(f"no directory {folder!r} for {value!r}: make it first")
    kind = os.path.splitext(value)[1][1:].lower()
    if kind and kind not in kinds:
        raise click.BadParameter(f"no picture is called .{kind}; expected .{', .'.join(kinds)}")
    return value


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"--set {pair}: expected NAME=VALUE")
        found[name] = value
    return found


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of everything that runs a workload."""
    for option in (
        click.option("--lenient", is_flag=True, help="Skip and count lines that are no events."),
        click.option(
            "--implied",
            type=click.Choice(["before", "spread"]),
            default="before",
            show_default=True,
            help="Where frees go that printed no event.",
        ),
        click.option(
            "--sizes",
            type=click.Choice(["requested", "kernel"]),
            default="requested",
            show_default=True,
            help="Bytes of each kmalloc: as asked for, or as the kernel rounded.",
        ),
        click.option(
            "--touch",
            type=click.Choice(["first", "all", "none"]),
            default="first",
            show_default=True,
            help="Lines of an object that are written when it is allocated.",
        ),
        click.option(
            "--pace",
            type=click.FloatRange(min=0, min_open=True),
            help="Keep the trace's gaps, divided by this: 1 by default on a modelled machine; "
            "this one runs flat out.",
        ),
        click.option(
            "--min-time",
            default="0.5 s",
            show_default=True,
            callback=_time,
            help="Run warm passes for at least this long.",
        ),
        click.option(
            "--machine",
            callback=_machine,
            metavar="NAME|FILE",
            help="Run on a modelled machine: one of 'unislab machine', host, a file, or "
            "NODESxDOMAINSxCPUS such as 2x1x8.",
        ),
        click.option(
            "--duration",
            callback=_time,
            help="Stop one pass after this long and tell the rate, instead of repeating passes.",
        ),
        click.option(
            "--warmup",
            callback=_time,
            help="Time before --duration begins; a tenth of it by default.",
        ),
        click.option("--memory", callback=_memory, help="Budget of the allocator, such as 256MiB."),
        click.option(
            "--seed", type=int, default=0, show_default=True, help="Of all that is drawn."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        command = option(command)
    return command


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    """What json cannot write by itself: numpy's numbers."""
    return value.item() if hasattr(value, "item") else str(value)


def _version() -> str:
    from unislab._version import __version__

    return __version__


# ---- commands -----------------------------------------------------------------------------


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_version(), prog_name="unislab", message="%(prog)s %(version)s")
def cli() -> None:
    """A laboratory for slab allocation: run real kernel traces under several policies."""


@cli.command()
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--policies",
    default="all",
    show_default=True,
    callback=_policy_names,
    help="Comma-separated names, or all; with tunables as unified:adapt_period=0:batch_size=8.",
)
@click.option(
    "--baselines",
    default="",
    callback=_baseline_names,
    help="Mallocs beside them: malloc, malloc:jemalloc, malloc:mimalloc, malloc:tcmalloc, all.",
)
@click.option(
    "--rounds", type=click.IntRange(min=3), default=11, show_default=True, help="Turns of each."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True),
    callback=_picture,
    help="Write a picture.",
)
@_run_options
def compare(
    workload: str,
    policies: Any,
    baselines: Any,
    rounds: int,
    plot: str | None,
    lenient: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a trace under several policies: which serves it best, and why.

    TRACE is a file that ftrace, trace-cmd report or perf script printed (plain, gzip, xz or zstd),
    "-" for standard input, or the name of a shipped trace or workload ("unislab workloads" lists
    these), with parameters as in hackbench:groups=2:loops=5.

    Locks are counted by class: shared (a stock that several CPUs share), alien (one of another
    node's objects), slab (one slab), node (a node's lists of slabs), pages (the page provider),
    meta (memory for tables), control (a CPU whose stock is drained from afar).
    """
    import unislab as us
    from unislab import _tables

    loaded = _load(workload, lenient)
    comparison = us.compare(
        loaded,
        policies,
        baselines=baselines,
        rounds=rounds,
        progress=sys.stderr.isatty() and not as_json,
        **options,
    )
    if plot:
        comparison.plot().get_figure(root=True).savefig(plot)  # type: ignore[union-attr]
    if as_json:
        _print_json(_comparison_json(comparison))
        return
    out = _tables.console()
    if isinstance(loaded, us.Trace):
        out.print(repr(loaded)[1:-1], soft_wrap=True)
    _tables.show_comparison(comparison, out)


def _comparison_json(comparison: Any) -> dict[str, Any]:
    return {
        "workload": comparison.workload,
        "verdict": comparison.verdict,
        "explanation": comparison.explanation,
        "reasons": comparison.reasons,
        "notes": list(comparison.notes),
        "summary": comparison.summary.reset_index().to_dict("records"),
        "rounds": comparison.rounds,
        "results": {name: _result_json(r) for name, r in comparison.results.items()},
    }


def _result_json(result: Any) -> dict[str, Any]:
    import dataclasses

    return {
        "workload": result.workload,
        "policy": result.policy,
        "label": result.label,
        "seconds": dataclasses.asdict(result.seconds) if result.seconds else None,
        "harness": result.harness,
        "marks": result.marks,
        "elapsed": result.elapsed,
        "explanation": dataclasses.asdict(result.explanation) if result.explanation else None,
        "rate": result.rate,
        "counts": dict(result.counts),
        "counters": dict(result.counters),
        "memory": dict(result.memory),
        "tunables": dict(result.tunables),
        "seed": result.seed,
        "environment": dict(result.environment),
    }


@cli.command()
@click.argument("workload", metavar="TRACE|NAME")
@click.option("--policy", default="unified", show_default=True, callback=_policy_name)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A tunable; repeatable."
)
@_run_options
def run(
    workload: str,
    policy: str,
    settings: Sequence[str],
    lenient: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a trace or workload under one policy: times, counters, memory.

    TRACE|NAME is as for compare: tcp_rr:streams=16:transactions=None is a workload with parameters.
    """
    import unislab as us
    from unislab import _tables

    options |= _settings(settings)
    result = us.run(_load(workload, lenient), policy, **options)
    if as_json:
        _print_json(_result_json(result))
    else:
        _tables.show_result(result, _tables.console())


def _tables_named(ctx: click.Context, parameter: click.Parameter, value: Any) -> list[str]:
    from unislab.reproduction.data import table_name
    from unislab.reproduction.tables import NOT_BUILT, TABLES

    if not value or "all" in [name.lower() for name in value]:
        return [*TABLES, *NOT_BUILT]
    return [_checked(partial(table_name, name)) for name in value]


@cli.command()
@click.argument("tables", nargs=-1, callback=_tables_named, metavar="[TABLE]...")
@click.option("--quick", is_flag=True, help="Fewer rows and shorter times: a look, no verdict.")
@click.option("--plot", type=click.Path(dir_okay=False, writable=True), help="Write a picture.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; by default one for each CPU.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reproduce(
    tables: list[str], quick: bool, plot: str | None, jobs: int | None, seed: int, as_json: bool
) -> None:
    """Run published tables on modelled machines, published beside modelled.

    TABLE is T1 to T5, S1, X1 to X5, or all (the default). A table with a bound gets a verdict:
    reproduced, sign only (directions right, sizes not), or not reproduced.
    """
    from unislab.reproduction.plot import picture
    from unislab.reproduction.run import processes, run_tables

    shown = sys.stderr.isatty() and not as_json
    with processes(jobs) as executor:
        done = run_tables(tables, quick=quick, seed=seed, executor=executor, progress=shown)
    if plot:
        picture(done).savefig(plot)
    if as_json:
        _print_json([one.to_json() for one in done])
    else:
        click.echo("\n\n".join(one.text for one in done))


@cli.group()
def trace() -> None:
    """Look at traces."""


@trace.command()
@click.argument("file", metavar="TRACE|NAME")
@click.option("--lenient", is_flag=True, help="Skip and count lines that are no events.")
@click.option("--all", "everything", is_flag=True, help="All caches, not only the busiest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(file: str, lenient: bool, everything: bool, as_json: bool) -> None:
    """What a trace holds: counts, and one row a cache."""
    from unislab import _tables

    loaded = _trace(file, lenient)
    table = loaded.describe()
    if as_json:
        _print_json(
            {
                "source": loaded.source,
                "counts": dict(loaded.counts),
                "other_events": dict(loaded.other_events_by_name),
                "caches": json.loads(table.reset_index().to_json(orient="records")),
            }
        )
        return
    out = _tables.console()
    out.print(repr(loaded)[1:-1], soft_wrap=True)
    out.print(
        ", ".join(f"{name} {value:,}" for name, value in loaded.counts.items()), soft_wrap=True
    )
    _tables.show_description(table, out, rows=None if everything else 20)


@cli.command()
def workloads() -> None:
    """Names of the workloads that come with the package, with their parameters.

    A shipped trace goes before a workload of the same name: hackbench is the trace, "hackbench:"
    the workload.
    """
    import inspect

    import unislab as us

    for name in us.workloads.names():
        given = inspect.signature(getattr(us.workloads, name)).parameters.values()
        click.echo(":".join([name, *(f"{p.name}={_told(p.default)}" for p in given)]))


def _told(value: Any) -> str:
    """A parameter's value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@trace.command("list")
def list_() -> None:
    """Names of the traces that come with the package."""
    import unislab as us

    click.echo("\n".join(us.datasets.names()))


@cli.command()
@click.argument("workload", metavar="TRACE|NAME", default="tcp_rr")
@click.option("--policy", default="unified", show_default=True, callback=_policy_name)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A tunable; repeatable."
)
@click.option("--lenient", is_flag=True, help="Skip and count lines that are no events.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def slabinfo(
    workload: str, policy: str, settings: Sequence[str], lenient: bool, as_json: bool
) -> None:
    """Run a workload once and print its caches as /proc/slabinfo does, while objects are live.

    TRACE|NAME is as for compare; by default tcp_rr.
    """
    from unislab._run import as_workload
    from unislab.contestant import PolicyContestant

    loaded = as_workload(
        _load(workload, lenient), implied="before", sizes="requested", seed=0, pace=None
    )
    contestant = PolicyContestant(loaded, policy, tunables=_settings(settings))
    try:
        contestant.passes(1)
        if as_json:
            frame = contestant.allocator.slabinfo().reset_index()
            _print_json(json.loads(frame.to_json(orient="records")))
        else:
            click.echo(contestant.allocator.slabinfo_text(), nl=False)
    finally:
        contestant.close()


@cli.command()
@click.option(
    "--explain", metavar="NAME", callback=_explained, help="Tunables and counters of one policy."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(explain: str | None, as_json: bool) -> None:
    """The policies there are."""
    from unislab import _native, _tables

    titles = dict(_native._policies())
    if explain is not None:
        _explain(explain, as_json)
        return
    if as_json:
        _print_json([{"policy": name, "title": title} for name, title in titles.items()])
        return
    _tables.show_pairs(("policy", "what it is"), titles, _tables.console())


@cli.command()
@click.argument("name", metavar="NAME|FILE", required=False)
@click.option("--calibrate", is_flag=True, help="Measure this machine and keep its costs.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600, min_open=True),
    default=10,
    show_default=True,
    help="How long to measure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine(name: str | None, calibrate: bool, seconds: float, as_json: bool) -> None:
    """Known machines, or one of them with the source of each cost.

    NAME is one of the list, "host" for this machine, NODESxDOMAINSxCPUS, or a file that
    Machine.to_json wrote.
    """
    import unislab as us
    from unislab import _machine_json, _tables
    from unislab.profiles import PROFILES

    if calibrate and name not in (None, "host"):
        raise click.UsageError(f"--calibrate measures this machine, it cannot measure {name}")
    if name is None and not calibrate:
        titles = {known: make().title for known, make in PROFILES.items()}
        titles["host"] = "this machine" + (
            "" if us.Machine.host().name == "host" else ", not calibrated: --calibrate measures it"
        )
        if as_json:
            _print_json([{"machine": known, "title": title} for known, title in titles.items()])
        else:
            _tables.show_pairs(("machine", "what it is"), titles, _tables.console())
        return
    if calibrate:
        shown = us.Machine.calibrate(seconds=seconds)
    else:
        shown = _checked(partial(_find_machine, str(name)))
    if as_json:
        _print_json(_machine_json.record(shown))
    else:
        _tables.show_machine(shown, _tables.console())


def _explain(policy: str, as_json: bool) -> None:
    from unislab import _tables
    from unislab.inspect import policy_counters, policy_title, policy_tunables

    title = policy_title(policy)
    tunables, counters = policy_tunables(policy), policy_counters(policy)
    if as_json:
        _print_json(
            {
                "policy": policy,
                "title": title,
                "tunables": json.loads(tunables.to_json(orient="records")),
                "counters": json.loads(counters.to_json(orient="records")),
            }
        )
        return
    out = _tables.console()
    out.print(f"{policy}: {title}", soft_wrap=True)
    _tables.show_tunables(tunables, out)
    _tables.show_counters(counters, out)


if __name__ == "__main__":
    main()
