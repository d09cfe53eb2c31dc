"""The museum's results as tables: the score, bug by bug with links, and the clean ports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from studies.captures import DUMPED
from studies.museum.catalogue import BY_NAME
from studies.museum.controls import Control
from studies.museum.exhibit import Exhibit
from studies.museum.recording import layer_of
from studies.museum.trial import MIXES, Found, Result
from studies.tables import line, percent

FOUND: tuple[Found, ...] = ("exact", "same block", "wrong", "missed", "undecided")
_SCORE = ("shown", "not shown", *FOUND, "hint right", "hint wrong", "no hint", "clean ports", "false culprits")
T = TypeVar("T")


def museum(results: Sequence[Result], controls: Sequence[Control], seeds: Sequence[int], is_report: bool) -> str:
    """All tables."""
    whole = [result for result in results if result.dumped == "everything"]
    told = "none of which was used while the rules were made" if is_report else "which the rules may be tuned on"
    of = f"{len({r.exhibit for r in results})} bugs, {len({c.architecture for c in controls})} architectures"
    parts = [
        [f"Seeds {', '.join(map(str, seeds))}, {told}; {of}."],
        _score("dumped", DUMPED, results, controls, lambda one: one.dumped),
        _score(
            "everything dumped, by types", [" / ".join(mix) for mix in MIXES], whole,
            [control for control in controls if control.dumped == "everything"], lambda one: " / ".join(one.dtypes),
        ),
        list(_bugs(results)),
        list(_ports(controls)),
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if part)


def _score(
    title: str, names: Sequence[str], results: Sequence[Result], controls: Sequence[Control],
    key: Callable[[Result | Control], str],
) -> list[str]:  # fmt: skip
    """What was found, of what was shown."""
    rows = [
        _score_row(name, [r for r in results if key(r) == name], [c for c in controls if key(c) == name])
        for name in names
    ]
    return [line((title, *_SCORE)), line(["---", *["---:"] * len(_SCORE)]), *map(line, rows)]


def _score_row(name: str, results: Sequence[Result], controls: Sequence[Control]) -> list[str]:
    shown = [result for result in results if result.is_shown]
    hints = (
        sum(result.is_hint_right for result in shown),
        sum(result.is_hint_wrong for result in shown),
        sum(not result.hint for result in shown),
    )
    found = [sum(result.found == kind for result in shown) for kind in FOUND]
    shares = [percent(count, len(shown)) for count in (*found, *hints)]
    false = sum(bool(control.named) for control in controls)
    return [name, str(len(shown)), _not_shown(results), *shares, str(len(controls)), str(false)]


def _not_shown(results: Sequence[Result]) -> str:
    """How many do not show, and in how many of those a layer is named that has nothing to do with the bug."""
    hidden = [result for result in results if not result.is_shown]
    wrong = sum(result.found == "wrong" for result in hidden)
    return f"{len(hidden)}" + (f" ({wrong} with another named)" if wrong else "")


def _bugs(results: Sequence[Result]) -> Iterator[str]:
    """Bug by bug: how often the culprit is exact, of the times it is shown, and what else is said."""
    if not results:
        return
    heads = ("what was wrong", "reported in", "model", "computed by", *DUMPED, "hints", "hints, blocks alone")
    yield line(heads)
    yield line(["---"] * 4 + ["---:"] * len(DUMPED) + ["---"] * 2)
    for name, group in _grouped(results, lambda result: result.exhibit).items():
        exhibit = BY_NAME[name]
        counts = [_exact([r for r in group if r.dumped == dumped]) for dumped in DUMPED]
        shown = [result for result in group if result.is_shown]
        hints = [_hints([result for result in shown if result.dumped == dumped]) for dumped in ("everything", "blocks")]
        links = ", ".join(map(_link, exhibit.reports))
        yield line((exhibit.what, links, exhibit.architecture.name, _culprits(exhibit), *counts, *hints))


def _culprits(exhibit: Exhibit) -> str:
    return ", ".join(f"`{path or layer_of(path)}`" for path in exhibit.culprits)


def _exact(results: Sequence[Result]) -> str:
    shown = [result for result in results if result.is_shown]
    return f"{sum(result.found == 'exact' for result in shown)} of {len(shown)}" if shown else "not shown"


def _hints(results: Sequence[Result]) -> str:
    """The kinds that were said, wrong ones struck out."""
    kinds = dict.fromkeys((r.hint, r.is_hint_right) for r in results if r.hint)
    return ", ".join(f"`{kind}`" if is_right else f"~~`{kind}`~~" for kind, is_right in kinds)


def _link(report: str) -> str:
    where, _, number = report.partition("#")
    return f"[{report}](https://github.com/{where}/issues/{number})"


def _ports(controls: Sequence[Control]) -> Iterator[str]:
    """Clean ports: in what way they differ, how many were compared, and which have a culprit."""
    if not controls:
        return
    yield line(("clean ports", "architectures", "comparisons", "false culprits", "in"))
    yield line(("---", "---:", "---:", "---:", "---"))
    for name, group in _grouped(controls, lambda control: control.port).items():
        false = [control for control in group if control.named]
        count = str(len({control.architecture for control in group}))
        places = ", ".join(dict.fromkeys(control.architecture for control in false))
        yield line((name, count, str(len(group)), str(len(false)), places))


def _grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def misses(results: Iterable[Result], controls: Iterable[Control]) -> Iterator[str]:
    """What is not as it should be, a line each."""
    for result in results:
        what = f"{result.exhibit} {result.seed} {'/'.join(result.dtypes)} {result.dumped}"
        if result.is_shown and result.found != "exact":
            names = f"{result.named or 'none'}, not {' or '.join(result.expected)}"
            yield f"{result.found:10} {what}: {names} ({result.error:.1e}); {result.why}"
        if result.is_shown and result.is_hint_wrong:
            yield f"wrong hint {what}: {result.hint}: {result.sentence}"
        if not result.is_fair:
            yield f"unfair     {what}: what the culprit is given is wrong already"
    for control in controls:
        if control.named:
            what = f"{control.architecture} {control.port} {control.seed} {'/'.join(control.dtypes)} {control.dumped}"
            yield f"false      {what}: {control.named} step {control.step}; {control.why}"
