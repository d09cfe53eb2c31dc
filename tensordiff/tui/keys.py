"""Every key of the application, in one table.

Bindings, footer, palette, help, user overrides and ``docs/keys.md`` are all derived from ``KEYS``. To add a key, add a
line here and write its ``action_…`` method in the class that ``OWNERS`` names for its ``where``; an action that begins
with ``screen.`` is a method of ``ComparisonScreen``. A class takes its keys with ``BINDINGS = bindings("layer")``.

The user's ``[keys]`` table maps ids to keys. The app applies it once (``App.set_keymap``), so no part needs to know it.
Inside a text field letters are text: no letter here has priority.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast, get_args

from textual.binding import Binding, BindingType

Where = Literal[
    "app", "diff", "table", "rules", "orphans", "bisect", "layer", "map", "weights", "start", "help", "dialog"
]
"""The part of the screen that the keys belong to: the focused part and all parts around it listen."""
OWNERS: dict[Where, str] = {
    "app": "tui/app.py:TensordiffApp",
    "diff": "tui/comparison/screen.py:ComparisonScreen",
    "table": "tui/table/table.py:LayerTable",
    "rules": "tui/rules/rule_list.py:RuleList",
    "orphans": "tui/rules/orphan_list.py:_Pairing",
    "bisect": "tui/comparison/bisect_bar.py:BisectBar",
    "layer": "tui/layer/screen.py:LayerScreen",
    "map": "tui/rules/map_screen.py:MapScreen",
    "weights": "tui/weights/parameter_list.py:ParameterList",
    "start": "tui/start.py:StartScreen",
    "help": "tui/key_help.py:KeyHelpScreen",
    "dialog": "tui/dialogs.py:Dialog",
}
"""The class whose ``action_…`` methods the keys call; a test checks every key against it."""


class Key(NamedTuple):
    """One thing that can be done, and the keys that do it."""

    id: str
    keys: str
    """Comma separated, as Textual names them; the first one is shown."""
    action: str
    label: str
    """One or two words, for the footer."""
    help: str
    where: Where
    show: bool = False


KEYS: tuple[Key, ...] = (
    # The whole application
    Key("app.help", "question_mark,f1", "help", "help", "List the keys that work here", "app", True),
    Key("app.palette", "ctrl+p,colon", "command_palette", "commands", "Find any command by typing", "app", True),
    Key("app.back", "q", "back", "back", "Leave this screen; at the first one, quit", "app", True),
    Key("app.quit", "ctrl+q", "quit", "quit", "Quit now, ending what runs", "app"),
    Key("app.interrupt", "ctrl+c", "interrupt", "quit", "Copy what is selected, else quit", "app"),
    Key("app.escape", "escape", "escape", "leave", "Close the filter, the bisect bar or the zoomed panel", "app"),
    Key("app.focus.next", "tab", "focus_next", "next part", "Focus the next part of the screen", "app"),
    Key("app.focus.previous", "shift+tab", "focus_previous", "previous part", "Focus the previous part", "app"),
    Key("app.zoom", "z", "zoom", "zoom", "Give the whole screen to the focused part, or back", "app"),
    Key("app.theme", "T", "switch_theme", "theme", "Light or dark", "app"),
    # The comparison
    Key("app.focus.table", "1", "focus_part('table')", "table", "Focus the table", "diff"),
    Key("app.focus.plot", "2", "focus_part('plot')", "plot", "Show or hide the plot", "diff"),
    Key("app.focus.rules", "3", "focus_part('rules')", "rules", "Focus the rules", "diff"),
    Key(
        "diff.filter",
        "slash",
        "filter",
        "filter",
        "Only layers that match a regular expression; ! inverts",
        "diff",
        True,
    ),
    Key("diff.faults", "f", "faults", "faults", "Only rows that do not agree, inputs too; or all rows", "diff", True),
    Key("diff.inputs", "I", "inputs", "inputs", "Inputs too, or outputs only", "diff"),
    Key("diff.go", "l", "go", "go to", "Go to a layer by typing its name", "diff"),
    Key("diff.columns", "C", "columns", "columns", "Choose the columns", "diff"),
    Key("diff.tighter", "left_parenthesis", "tolerance(-1)", "tighter", "Tolerance divided by 10", "diff"),
    Key("diff.looser", "right_parenthesis", "tolerance(1)", "looser", "Tolerance times 10", "diff"),
    Key("diff.metric", "t", "choose_tolerance", "tolerance", "Choose the tolerance", "diff"),
    Key("diff.plot.metric", "p", "plot_metric", "plot", "Plot rel L2 or MSE", "diff"),
    Key("diff.map", "m", "toggle_rules", "rules", "Show the rules and orphans, or hide them", "diff", True),
    Key(
        "diff.inject",
        "i",
        "inject",
        "inject",
        "Show injected errors; or rerun with the reference's inputs",
        "diff",
        True,
    ),
    Key(
        "diff.inject.here",
        "ctrl+o",
        "inject_here",
        "inject…",
        "Rerun with inputs injected here, everywhere, in a range",
        "diff",
    ),
    Key("diff.capture", "c", "capture", "capture", "Run a source again with other settings", "diff"),
    Key("diff.ops", "o", "ops", "ops", "The operations inside this layer", "diff"),
    Key("diff.keep", "K", "keep", "keep", "Keep what was captured here when the app ends", "diff"),
    Key("job.cancel", "x", "cancel_job", "cancel", "End what is running", "diff", True),
    Key("job.log", "L", "job_log", "log", "Show or hide the log of what is running", "diff"),
    Key(
        "diff.export",
        "e",
        "export",
        "export",
        "Write a report of the selected pair, the marked rows, or all",
        "diff",
        True,
    ),
    Key("diff.reload", "ctrl+r", "reload", "reload", "Read the dumps again", "diff"),
    Key("diff.note", "quotation_mark", "note", "note", "Write a note on this layer", "diff"),
    Key("diff.findings", "F", "findings", "findings", "Warnings about this comparison", "diff"),
    Key(
        "bisect.start",
        "b",
        "bisect",
        "bisect",
        "Search for the first bad layer by halving; or back to it",
        "diff",
        True,
    ),
    # The table
    Key("table.down", "j,down", "cursor(1)", "down", "Next row", "table"),
    Key("table.up", "k,up", "cursor(-1)", "up", "Previous row", "table"),
    Key("table.page.down", "ctrl+d,pagedown", "page(1)", "page down", "A page down", "table"),
    Key("table.page.up", "ctrl+u,pageup", "page(-1)", "page up", "A page up", "table"),
    Key("table.top", "g,home", "end(-1)", "top", "First row", "table"),
    Key("table.bottom", "G,end", "end(1)", "bottom", "Last row", "table"),
    Key("table.left", "left", "sideways(-1)", "left", "Scroll to the left", "table"),
    Key("table.right", "right", "sideways(1)", "right", "Scroll to the right", "table"),
    Key("table.open", "enter", "open", "open", "Open the layer", "table", True),
    Key("table.mark", "space", "mark", "mark", "Mark this row, or take the mark off", "table"),
    Key(
        "table.next",
        "n",
        "screen.culprit(1)",
        "next fault",
        "Next culprit; where there is none, next divergent row",
        "table",
        True,
    ),
    Key("table.previous", "N", "screen.culprit(-1)", "previous fault", "Previous culprit, or divergent row", "table"),
    Key("table.sort", "s", "sort(1)", "sort", "Sort by the next column", "table", True),
    Key("table.reverse", "S", "reverse", "reverse", "Sort the other way round", "table"),
    Key("table.order", "0", "order", "in order", "Back to execution order", "table"),
    Key("table.tree", "w", "screen.tree", "tree", "Rows by module, or one list", "table"),
    Key("table.collapse", "h,minus", "fold(-1)", "collapse", "Collapse this module", "table"),
    Key("table.expand", "plus,equals_sign", "fold(1)", "expand", "Expand this module", "table"),
    Key("table.copy", "y", "screen.copy('name')", "copy", "Copy the layer's name", "table"),
    Key("table.copy.json", "Y", "screen.copy('json')", "copy JSON", "Copy the row as JSON", "table"),
    # The rules panel: the list of rules
    Key("rules.down", "j,down", "cursor_down", "down", "Next line", "rules"),
    Key("rules.up", "k,up", "cursor_up", "up", "Previous line", "rules"),
    Key("rules.page.down", "ctrl+d,pagedown", "page(1)", "page down", "A page down", "rules"),
    Key("rules.page.up", "ctrl+u,pageup", "page(-1)", "page up", "A page up", "rules"),
    Key("rules.top", "g,home", "end(-1)", "top", "First line", "rules"),
    Key("rules.bottom", "G,end", "end(1)", "bottom", "Last line", "rules"),
    Key("rules.add", "a", "add", "add", "Add a rule; where the cursor is on a learned one, keep these", "rules", True),
    Key("rules.view", "v", "view", "add view", "Add a view, which reconciles shapes", "rules"),
    Key("rules.edit", "enter", "edit", "edit", "Edit this rule, seeing what changes", "rules", True),
    Key("rules.delete", "d,delete", "delete", "delete", "Delete this rule", "rules", True),
    Key("rules.toggle", "space", "switch", "on/off", "Switch this rule on or off", "rules", True),
    Key("rules.lower", "J", "move(1)", "later", "Apply this rule later", "rules"),
    Key("rules.raise", "K", "move(-1)", "earlier", "Apply this rule earlier", "rules"),
    Key("rules.pin", "p", "pin", "pin", "Keep the selected pair whatever the rules say", "rules"),
    Key("rules.undo", "u", "undo", "undo", "Undo the last change", "rules", True),
    Key("rules.redo", "U", "redo", "redo", "Redo the last change", "rules"),
    Key("rules.write", "w", "write", "write", "Write the rules to a file", "rules", True),
    # The rules panel: orphans and suggestions
    Key("orphans.down", "j,down", "cursor_down", "down", "Next line", "orphans"),
    Key("orphans.up", "k,up", "cursor_up", "up", "Previous line", "orphans"),
    Key("orphans.page.down", "ctrl+d,pagedown", "page(1)", "page down", "A page down", "orphans"),
    Key("orphans.page.up", "ctrl+u,pageup", "page(-1)", "page up", "A page up", "orphans"),
    Key("orphans.top", "g,home", "end(-1)", "top", "First line", "orphans"),
    Key("orphans.bottom", "G,end", "end(1)", "bottom", "Last line", "orphans"),
    Key(
        "orphans.pick",
        "enter,space,p",
        "pick",
        "pick",
        "Pick this entry, to pair it with one of the other side",
        "orphans",
        True,
    ),
    Key("orphans.accept", "a", "accept", "accept", "Accept this suggestion", "orphans", True),
    Key(
        "orphans.accept.above",
        "A",
        "accept_above",
        "accept all",
        "Accept all suggestions above a confidence",
        "orphans",
    ),
    Key("orphans.filter", "slash", "filter", "filter", "Only orphans that match; ! inverts", "orphans", True),
    Key("orphans.suggest", "s", "suggest", "suggest", "Look for partners by value, or stop looking", "orphans", True),
    Key("orphans.undo", "u", "undo", "undo", "Undo the last change", "orphans"),
    Key("orphans.write", "w", "write", "write", "Write the rules to a file", "orphans"),
    Key("orphans.why", "h", "why", "why", "Why this entry has no partner", "orphans"),
    Key(
        "orphans.expression",
        "x",
        "expression",
        "expression",
        "Pair with an expression such as cat(q, k, v)",
        "orphans",
        True,
    ),
    # The mapping dialog
    Key("map.this", "ctrl+l", "accept('layer')", "this layer", "Accept for this layer only", "map", True),
    Key("map.every", "ctrl+s", "accept('every')", "every layer", "Accept for every layer like it", "map", True),
    Key("map.cancel", "escape", "cancel", "cancel", "Leave it as it was", "map", True),
    # The bisect bar
    Key("bisect.good", "g", "answer('good')", "good", "The probe is right", "bisect", True),
    Key("bisect.bad", "b", "answer('bad')", "bad", "The probe is wrong", "bisect", True),
    Key("bisect.skip", "s", "answer('skip')", "skip", "Cannot tell; ask another", "bisect", True),
    Key("bisect.undo", "u", "undo", "undo", "Undo the last answer", "bisect", True),
    Key("bisect.auto", "a", "auto", "auto", "Answer by the verdicts until it is found", "bisect", True),
    Key("bisect.log", "l", "log", "log", "Every answer so far", "bisect"),
    Key("bisect.open", "enter", "open", "open", "Open the probe", "bisect", True),
    Key("bisect.reset", "r", "reset", "reset", "Forget the answers and end the search", "bisect", True),
    # The layer screen
    Key("layer.leave", "q,escape", "leave", "back", "Back to the table", "layer", True),
    Key("layer.next", "j", "walk(1)", "next", "Next layer", "layer", True),
    Key("layer.previous", "k", "walk(-1)", "previous", "Previous layer", "layer", True),
    Key("layer.fault.next", "n", "fault(1)", "next fault", "Next culprit, or divergent layer", "layer"),
    Key("layer.fault.previous", "N", "fault(-1)", "previous fault", "Previous culprit, or divergent layer", "layer"),
    Key("layer.tab.next", "right_square_bracket", "tab(1)", "next view", "Next view", "layer", True),
    Key("layer.tab.previous", "left_square_bracket", "tab(-1)", "previous view", "Previous view", "layer"),
    Key("layer.tab.profile", "1", "show('profile')", "profile", "The error along an axis", "layer"),
    Key("layer.tab.histogram", "2", "show('histogram')", "histogram", "How large the errors are", "layer"),
    Key("layer.tab.heatmap", "3", "show('heatmap')", "heatmap", "Where the errors are", "layer"),
    Key("layer.tab.values", "4", "show('values')", "values", "The values, side by side", "layer"),
    Key("layer.tab.worst", "5", "show('worst')", "worst", "The worst elements", "layer"),
    Key("layer.tab.statistics", "6", "show('statistics')", "statistics", "Both sides in numbers", "layer"),
    Key("layer.tab.neighbours", "7", "show('neighbours')", "neighbours", "The layers around this one", "layer"),
    Key("layer.side", "d", "side", "A·B·Δ", "Reference, candidate, difference, relative, or all four", "layer", True),
    Key("layer.axis", "v", "axis", "axis", "Along the next axis", "layer", True),
    Key("layer.heads", "h", "heads", "heads", "Set how many heads the channels are split into", "layer"),
    Key("layer.log", "l", "log", "log scale", "Log scale or linear", "layer"),
    Key("layer.shades", "s", "shades", "shades", "Shades or colours in the heatmap", "layer"),
    Key("layer.zoom.in", "plus,equals_sign", "zoom(1)", "zoom in", "Zoom into the heatmap", "layer", True),
    Key("layer.zoom.out", "minus", "zoom(-1)", "zoom out", "Zoom out of the heatmap", "layer"),
    Key("layer.zoom.whole", "0", "zoom(0)", "whole", "The whole tensor again", "layer"),
    Key("layer.left", "left", "move(-1, 0)", "left", "Move the cursor to the left", "layer"),
    Key("layer.right", "right", "move(1, 0)", "right", "Move the cursor to the right", "layer"),
    Key("layer.up", "up", "move(0, -1)", "up", "Move the cursor up", "layer"),
    Key("layer.down", "down", "move(0, 1)", "down", "Move the cursor down", "layer"),
    Key("layer.page.left", "shift+left,home", "page(-1, 0)", "page left", "A screenful to the left", "layer"),
    Key("layer.page.right", "shift+right,end", "page(1, 0)", "page right", "A screenful to the right", "layer"),
    Key("layer.page.up", "shift+up,pageup,ctrl+u", "page(0, -1)", "page up", "A screenful up", "layer"),
    Key("layer.page.down", "shift+down,pagedown,ctrl+d", "page(0, 1)", "page down", "A screenful down", "layer"),
    Key("layer.slice.previous", "comma", "slice(-1)", "previous slice", "Previous index of another axis", "layer"),
    Key("layer.slice.next", "full_stop", "slice(1)", "next slice", "Next index of another axis", "layer"),
    Key("layer.go", "g", "go", "go to", "Go to an index, such as 3,17; in the values typing it will do", "layer", True),
    Key("layer.open", "enter", "open", "open", "Go to the selected element, input, child or neighbour", "layer", True),
    Key("layer.parent", "backspace,P", "parent", "parent", "Go to the module around this one", "layer"),
    Key(
        "layer.inject", "i", "ask('inject')", "inject", "Rerun with the reference's inputs injected here", "layer", True
    ),
    Key("layer.ops", "o", "ask('ops')", "ops", "The operations inside this layer", "layer", True),
    Key("layer.export", "e", "ask('export')", "export", "Write a report of this layer", "layer", True),
    Key("layer.copy", "y", "copy('name')", "copy", "Copy the layer's name", "layer"),
    Key("layer.copy.view", "Y", "copy('view')", "copy view", "Copy what is shown, as text", "layer"),
    # The parameters of two checkpoints
    Key("weights.down", "j,down", "cursor_down", "down", "Next parameter", "weights"),
    Key("weights.up", "k,up", "cursor_up", "up", "Previous parameter", "weights"),
    Key("weights.page.down", "ctrl+d,pagedown", "page(1)", "page down", "A page down", "weights"),
    Key("weights.page.up", "ctrl+u,pageup", "page(-1)", "page up", "A page up", "weights"),
    Key("weights.top", "g,home", "end(-1)", "top", "First parameter", "weights"),
    Key("weights.bottom", "G,end", "end(1)", "bottom", "Last parameter", "weights"),
    Key("weights.next", "n", "finding(1)", "next fault", "Next parameter that does not agree", "weights", True),
    Key("weights.previous", "N", "finding(-1)", "previous fault", "Previous parameter that does not agree", "weights"),
    Key("weights.faults", "f", "findings", "faults", "Only parameters that do not agree, or all", "weights", True),
    Key("weights.filter", "slash", "filter", "filter", "Only parameters that match; ! inverts", "weights", True),
    Key("weights.export", "e", "export", "export", "Write the comparison as JSON", "weights", True),
    Key("weights.copy", "y", "copy('name')", "copy", "Copy the parameter's name", "weights"),
    Key("weights.copy.json", "Y", "copy('json')", "copy JSON", "Copy the row as JSON", "weights"),
    # The start screen
    Key("start.open", "enter", "open", "open", "Open this pair", "start"),
    Key("start.forget", "delete,backspace", "forget", "forget", "Take this pair off the list", "start"),
    Key("start.browse", "o", "browse", "browse", "Pick two dumps", "start", True),
    Key("start.capture", "c", "capture", "capture", "Run a source into a dump", "start", True),
    Key("start.demo", "d", "demo", "demo", "Open the samples, which hide a planted bug", "start", True),
    # The page of keys
    Key("help.close", "question_mark,f1,escape,q", "close", "close", "Close the page of keys", "help"),
    Key("help.down", "j,down", "scroll('down')", "down", "A line down", "help"),
    Key("help.up", "k,up", "scroll('up')", "up", "A line up", "help"),
    Key("help.page.down", "ctrl+d,pagedown,space", "scroll('page_down')", "page down", "A page down", "help"),
    Key("help.page.up", "ctrl+u,pageup", "scroll('page_up')", "page up", "A page up", "help"),
    Key("help.top", "g,home", "scroll('home')", "top", "The first keys", "help"),
    Key("help.bottom", "G,end", "scroll('end')", "bottom", "The last keys", "help"),
    # Dialogs
    Key("dialog.cancel", "escape", "cancel", "cancel", "Leave it as it was", "dialog", True),
    Key("dialog.accept", "ctrl+s", "accept", "accept", "Do it", "dialog", True),
)

SHOWN_WHILE_ENABLED = frozenset(("cancel_job",))
"""Actions that the footer hides while they are greyed: there is nothing to cancel most of the time."""

BY_ID = {key.id: key for key in KEYS}
WHERES = cast(tuple[Where, ...], get_args(Where))


def bindings(where: Where) -> list[BindingType]:
    """The bindings of one part of the screen."""
    return [
        Binding(key.keys, key.action, key.label, show=key.show, tooltip=key.help, id=key.id)
        for key in KEYS
        if key.where == where
    ]
