"""Text models of transformers with our attention beside eager's, in float32 on the CPU: equal, refused, or why not.

    python benchmarks/models_beside_eager.py [-o ROWS] [NAME …] [--page]

A row is a model (benchmarks/tiny_models.py makes it), with a verdict for each case: "equal" with the largest difference
of the logits of real tokens ÷ their largest size, "refused" with the sentence, "eager" with the reason why eager itself
does not do this, "different", or "failed". A model that takes longer than a limit of the processor's time, which does
not depend on what else runs, has a row that says so and no verdict; the next run tries it again. Rows are written as
they are made; those that are there, of the same transformers and the same code of ours, are not made again. With --page
the rows become docs/transformers-models.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import textwrap
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import tiny_models

from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file
from pebblesim.operator import checks, definition, masks, operators, public
from pebblesim.operator.integrations import transformers as ours, transformers_masks
from pebblesim.operator.sinks import operators as operators_of_sinks

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "models_beside_eager.jsonl"
N = 24
NEW = 6
EQUAL = 1e-4
"""Largest difference of logits ÷ their largest size that float32 explains."""
CODE = (ours, transformers_masks, public, masks, checks, definition, operators, operators_of_sinks, tiny_models)
"""Modules that decide what becomes of a model."""
SECONDS = 120
"""Time of the processor for a model; then it is given up."""
LATE = "took too long"


class Late(BaseException):
    """A model takes too long; what a model's own code catches is another exception."""


def token_ids(rows: int = 2) -> Any:
    """Random words of texts, none of them special."""
    import torch

    return torch.randint(10, 60, (rows, N), generator=torch.Generator().manual_seed(1))


def padded(left: bool) -> tuple[Any, Any]:
    """Texts of 24 and 17 words, and which are real."""
    import torch

    real = torch.ones(2, N, dtype=torch.long)
    real[1, slice(0, 7) if left else slice(N - 7, N)] = 0
    return token_ids(), real


def out_of(model: Any, ids: Any, real: Any = None, **options: Any) -> Any:
    """Logits or hidden states of the tokens that are real."""
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = ids.flip(1) if real is None else ids
        if real is not None:
            options["decoder_attention_mask"] = real
    if real is not None:
        options["attention_mask"] = real
    made = model(input_ids=ids, **options)
    found = made.logits if "logits" in made else made[0]
    return found if real is None else found[real.bool()]


def plain(model: Any) -> Any:
    """24 words, more than any window or chunk."""
    return out_of(model, token_ids())


def left(model: Any) -> Any:
    """A text with padding before it."""
    return out_of(model, *padded(True))


def right(model: Any) -> Any:
    """A text with padding behind it."""
    return out_of(model, *padded(False))


def packed(model: Any) -> Any:
    """Two texts in a row, told apart by their positions."""
    import torch

    at = torch.cat([torch.arange(9), torch.arange(N - 9)])[None].expand(2, -1)
    options = {} if model.config.is_encoder_decoder is True else {"position_ids": at}
    if not options or "position_ids" not in signature(model.forward).parameters:
        raise NotImplementedError("the model takes no position_ids")
    return out_of(model, token_ids(), use_cache=False, **options)


def cached(model: Any) -> Any:
    """18 words, then 3 behind them, then three times one."""
    import torch

    if not model.can_generate():
        raise NotImplementedError("the model does not generate")
    ids, found, cache, start = token_ids(), [], None, 0
    for end in (18, 21, 22, 23, 24):
        options = {"past_key_values": cache, "use_cache": True}
        if model.config.is_encoder_decoder:
            made = model(input_ids=ids, decoder_input_ids=ids[:, start:end], **options)
        else:
            made = model(input_ids=ids[:, start:end], **options)
        cache, start = made.past_key_values, end
        found.append(made.logits)
    return torch.cat(found, 1)


def generate(model: Any, **options: Any) -> Any:
    """Six new words of a text with padding before it, and all their logits."""
    import torch

    if not model.can_generate():
        raise NotImplementedError("the model does not generate")
    ids, real = padded(True)
    made = model.generate(
        ids,
        attention_mask=real,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
        **options,
    )
    return torch.stack(made.logits, 1)


def static(model: Any) -> Any:
    """The same with a cache of fixed size."""
    return generate(model, cache_implementation="static")


CASES: dict[str, Callable[[Any], Any]] = {
    each.__name__: each for each in (plain, left, right, packed, cached, generate, static)
}


def verdict(model: Any, case: Callable[[Any], Any]) -> dict[str, Any]:
    """What becomes of one case."""
    import torch

    found = []
    for name in ("eager", ours.NAME):
        model.set_attn_implementation(name)
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                found.append(case(model).double())
        except Exception as error:
            said = in_a_line(error)
            if name == "eager":
                return {"verdict": "eager", "why": said}
            return {"verdict": "refused" if isinstance(error, UsageError) else "failed", "why": said}
    one, other = found
    real = one.isfinite()  # some models forbid words by logits of -infinity
    if not one[real].any():
        return {"verdict": "eager", "why": "its logits are not finite, or all 0"}
    difference = float((one - other)[real].abs().max() / one[real].abs().max())
    alike = bool((one[~real] == other[~real]).all()) and difference <= EQUAL
    return {"verdict": "equal" if alike else "different", "difference": difference}


def made_with_ours(model: Any) -> dict[str, Any]:
    """What becomes of a model with an attention of its own that is made with the name of ours, as users make one.

    `set_attn_implementation` leaves such a model as it is.
    """
    import torch

    model.set_attn_implementation("eager")
    try:
        other = type(model)._from_config(deepcopy(model.config), attn_implementation=ours.NAME).eval()
    except Exception as error:
        return {"verdict": "not made", "why": f"{type(error).__name__}: {in_a_line(error)}"}
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = plain(model)
        try:
            found = plain(other)
        except UsageError as error:
            return {"verdict": "refused", "why": in_a_line(error)}
    return {"verdict": "as eager" if torch.equal(found, expected) else "different"}


def in_a_line(error: Exception) -> str:
    """What an exception says."""
    return " ".join(f"{error}".split())[:300] or type(error).__name__


def row_of(name: str) -> dict[str, Any]:
    """All cases of a model."""
    import torch
    from transformers import AttentionInterface

    ours.register()
    attend, met = AttentionInterface._global_mapping[ours.NAME], list[str]()

    def meeting(*given: Any, **options: Any) -> Any:
        met.append(kind_of(options["attention_mask"] if "attention_mask" in options else given[4]))
        return attend(*given, **options)

    AttentionInterface.register(ours.NAME, meeting)
    row: dict[str, Any] = {"model": name} | told()

    def late(*given: Any) -> None:
        raise Late

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        torch.set_num_threads(1)
        model = tiny_models.made(name)
        row["layers"] = sorted(tiny_models.kinds_of(model.config))
        try:
            model.set_attn_implementation(ours.NAME)
        except (ValueError, ImportError, NotImplementedError) as error:
            return row | {"not": "does not take it", "why": in_a_line(error)}
        row["cases"] = {"plain": verdict(model, plain)}
        row["masks"] = sorted(set(met))
        row["cases"] |= {key: verdict(model, case) for key, case in CASES.items() if key != "plain"}
        if not met and any(each["verdict"] == "equal" for each in row["cases"].values()):
            row["made with ours"] = made_with_ours(model)
        row["calls"] = len(met)
    except Late:
        return {"model": name} | told() | {"not": LATE, "why": f"more than {SECONDS} s of the processor's time"}
    except tiny_models.NoText as error:
        return row | {"not": "no text model", "why": f"{error}"}
    except Exception as error:
        return row | {"not": "not made", "why": f"{type(error).__name__}: {in_a_line(error)}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        AttentionInterface.register(ours.NAME, attend)
    return row


def kind_of(mask: Any) -> str:
    """What a layer's mask is."""
    if mask is None:
        return "no mask"
    if not isinstance(mask, transformers_masks.Seen):
        return "numbers"
    if mask.band is None:
        return "ranges"
    low, high = mask.band.low, mask.band.high
    return {(True, True): "all keys", (True, False): "causal"}.get(
        (low is None, high is None), "causal window" if high == 0 else "window both ways"
    )


def told() -> dict[str, str]:
    """The versions that a row is of: transformers, and our code."""
    import transformers

    code = b"".join(Path(str(each.__file__)).read_bytes() for each in CODE)
    return {"transformers": transformers.__version__, "code": sha256(code).hexdigest()[:12]}


def rows(names: list[str], output: Path) -> Iterator[dict[str, Any]]:
    """The rows that the output already has, and the others, each of which is added to it."""
    known = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    done = {row["model"]: row for row in known if told().items() <= row.items() and row.get("not") != LATE}
    for name in names:
        if name not in done:
            done[name] = row_of(name)
            with whole_file(output) as path:
                path.write_text("".join(json.dumps(done[each]) + "\n" for each in sorted(done)))
        yield done[name]


def in_short(row: dict[str, Any]) -> str:
    """A row as a line."""
    if "not" in row:
        return f"{row['model']}: {row['not']}: {row['why'][:100]}"
    cases = (f"{key} {each['verdict']} {each.get('difference', '')}".strip() for key, each in row["cases"].items())
    return f"{row['model']}: {state(row)}: " + ", ".join(cases)


def state(row: dict[str, Any]) -> str:
    """The verdict on a model: the worst of its cases."""
    if "not" in row:
        return str(row["not"])
    found = {each["verdict"] for each in row["cases"].values()}
    if found & {"different", "failed"}:
        return "different"
    if "refused" in found:
        return "refused in part" if "equal" in found else "refused"
    if "equal" not in found:
        return "not done by eager"
    return "equal" if row["calls"] else "own attention"


def page(rows: list[dict[str, Any]]) -> str:
    """docs/transformers-models.md."""
    by_state: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_state.setdefault(state(row), []).append(row)
    lines = [
        HEAD.format(N=N, version=rows[0]["transformers"]),
        "| case | equal | refused | different | largest difference |",
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    used = [row for row in rows if state(row) in ("equal", "refused", "refused in part", "different")]
    for key, case in CASES.items():
        made = [row["cases"][key] for row in used]
        numbers = [sum(each["verdict"] == kind for each in made) for kind in ("equal", "refused", "different")]
        worst = max((each["difference"] for each in made if each["verdict"] == "equal"), default=0.0)
        title = (case.__doc__ or key).rstrip(".")
        lines.append(f"| {title} | {' | '.join(map(str, numbers))} | {worst:.1e} |")
    for name, what in STATES.items():
        these = by_state.pop(name, [])
        if not these:
            continue
        lines += ["", f"## {what} ({len(these)})", ""]
        reasons: dict[str, list[str]] = {}
        for row in these:
            reasons.setdefault(reason(row), []).append(row["model"])
        for why, models in reasons.items():
            lines += textwrap.wrap(f"{why.rstrip('.')}: {', '.join(models)}." if why else ", ".join(models) + ".", 100)
            lines.append("")
        lines.pop()
    assert not by_state, by_state.keys()
    return "\n".join(lines) + "\n"


def reason(row: dict[str, Any]) -> str:
    """Why a model is where it is."""
    if "not" in row:
        return str(row["why"])
    if state(row) == "own attention":
        return MADE[row["made with ours"]["verdict"]].format(ours.NAME)
    if state(row) == "equal":
        return " and ".join(row["masks"]) or "eager does not compute plain texts with these sizes"
    kind = {"refused": "refused", "refused in part": "refused", "not done by eager": "eager"}.get(state(row))
    said: dict[str, list[str]] = {}
    for key, each in row["cases"].items():
        if each["verdict"] == kind:
            said.setdefault(each["why"], []).append(key)
    cases = state(row) == "refused in part"
    return "; ".join(f"{', '.join(keys)}: {why}" if cases else why for why, keys in said.items())


HEAD = """# Models of transformers beside eager

`python benchmarks/models_beside_eager.py --page` makes this page: all text models of transformers
{version} (causal and masked language models, encoders, and those that turn a text into another) with
random weights and small sizes, with [our attention](attention.md#transformers) and with `eager`, in
float32 on the CPU. {N} tokens are more than any window and chunk, and layers of each kind are there.

A difference is the largest of the logits of real tokens, divided by the largest of these logits; up
to 10⁻⁴ is equal. The logits of padding are left out. Cases that `eager` itself does not do are not
counted. Models are named by their classes.
"""

MADE = {
    "as eager": "made with attn_implementation={0!r}, they run as in eager",
    "refused": "made with attn_implementation={0!r}, they are refused",
    "not made": "transformers itself makes no such model with attn_implementation={0!r}, and says so by a KeyError",
    "different": "made with attn_implementation={0!r}, they have other logits",
}
"""What becomes of models with an attention of their own."""

STATES = {
    "different": "Different",
    "equal": "Equal, by the masks of plain texts",
    "refused in part": "Equal in some cases and refused in others",
    "refused": "Refused",
    "own attention": "Never ask for an attention by name: they compute their own",
    "not done by eager": "Not computed by eager with these sizes, either",
    "does not take it": "Do not take an attention by name",
    "not made": "Not made so small",
    LATE: "Given up, without a verdict",
    "no text model": "No text models: with a tower for images or sounds",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="classes of models; all text models if none is given")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="ROWS", help="JSON lines")
    parser.add_argument("--page", action="store_true", help="write docs/transformers-models.md")
    asked = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.filterwarnings("ignore")
    names, found = asked.names or list(tiny_models.text_models()), []
    with progress_bar("models") as bar:
        for row in rows(names, asked.output):
            found.append(row)
            if bar:
                bar(len(found) / len(names), row["model"])
            else:
                print(in_short(row), flush=True)
    if asked.page:
        (HERE.parent / "docs" / "transformers-models.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
