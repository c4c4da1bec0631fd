"""Explain the names: `glossary`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pebblesim.cli.completion import problems
from pebblesim.cli.options import AsJson, argument, command, family
from pebblesim.cli.printing import print_json, print_rules, print_tensors, say
from pebblesim.core.errors import UnknownName, UsageError

app = family()


@command(app, example="pebblesim glossary backward")
def glossary(
    problem: Annotated[str, argument("A problem (see `pebblesim list`).", values=problems)] = "backward",
    *,
    as_json: AsJson = False,
) -> None:
    """Explain the names: each tensor of a problem, the parts of its sums, and the rules of the game."""
    from pebblesim.api.glossary import glossary as entries, parts_of_sums
    from pebblesim.api.rules_in_words import in_words
    from pebblesim.language.problems import problem as find

    try:
        solves = find(problem)
    except UnknownName as error:
        more = "" if error.near else " Terms such as gap, way or ops/byte are explained in docs/words.md."
        raise UsageError(f"{error}{more}") from None
    kinds = parts_of_sums()
    if as_json:
        parts = {kind: {"example": example, "meaning": meaning} for kind, (example, meaning) in kinds.items()}
        tensors = [asdict(entry) for entry in entries(problem)]
        print_json({"problem": solves.name, "tensors": tensors, "parts": parts, "rules": list(in_words())})
        return
    say(f"{solves.name}: {', '.join(solves.inputs)} → {', '.join(solves.outputs)}  ({solves.source})")
    print_tensors(entries(problem))
    say("\nparts of a sum; a game shows them after an element's name, such as S[0,1] (product 2 of 4)")
    wide = max(len(example) for example, _ in kinds.values())
    for example, meaning in kinds.values():
        if example:
            say(f"  {example:<{wide}}  {meaning}")
    print_rules("hong-kung")
