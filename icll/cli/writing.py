"""Write strings of a language."""

from __future__ import annotations

from pathlib import Path

from ..errors import IcllError
from .common import JSON, ProfileName, Source, allow_local_plugins, app, open_problems, print_json, print_table


@app.command
def generate(
    run: Path,
    /,
    *others: str,
    prompt: str | None = None,
    strings: int = 5,
    length: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
    score: bool = False,
    problems: int | None = None,
    data: Source = None,
    profile: ProfileName = None,
    json_: JSON = False,
) -> None:
    """Write new strings of a language from a few of its strings; or score such writing over the test set.

    Models are not trained to end strings, so their length is given.

    Example: `icll generate runs/retnet-ngh --prompt "abcab|abab|cabc" --strings 5`

    Example: `icll generate runs/retnet-ngh ngram:3 bayes --score --profile repo --problems 20`

    Parameters
    ----------
    run
        A run's folder.
    others
        With --score: predictors to set beside it, as of `icll score`.
    prompt
        Strings of the language, `|` between them.
    strings
        How many to write.
    length
        Symbols of each.
    temperature
        0 takes the likeliest symbol.
    seed
        Another seed draws other symbols.
    score
        Read each test problem, write strings, and count those its language accepts.
    problems
        With --score: how many test problems; default: 100, or all there are.
    """
    from ..generation import score_writing, write_strings
    from ..progress import progress_bar
    from ..scoring import open_predictor
    from ..tokens import VOCAB_SIZE, decode, encode
    from ..training import load_run

    allow_local_plugins()
    model = load_run(run)
    if model.config.vocab_size != VOCAB_SIZE:
        raise IcllError(f"{run} was not trained on strings of symbols: for a run on text there is `icll text generate`")
    if not score:
        if others:
            raise IcllError(f"{others[0]} is for --score: add it, or leave the predictors out")
        if not prompt:
            raise IcllError('give strings of the language: --prompt "abcab|abab", or --score')
        tokens = write_strings(model, encode(prompt), [length] * strings, temperature, seed)
        if json_:
            print_json({"prompt": prompt, "strings": decode(list(tokens)).split("|")[1:]})
            return
        for token in tokens:
            text = decode([token])
            print("\n" if text == "|" else text, end="", flush=True)
        print()
        return
    if prompt:
        raise IcllError("--prompt has no effect with --score, which reads test problems: leave one of them out")
    chosen = open_problems(data, None, None, profile, None, [str(run), *others])
    problems = min(100, len(chosen)) if problems is None else problems
    if not 1 <= problems <= len(chosen):
        raise IcllError(f"--problems must be 1..{len(chosen)} for this set, not {problems}")
    chosen = chosen[:problems]
    predictors = {model.name: model, **{spec: open_predictor(spec, chosen) for spec in others}}
    scores = []
    for name, predictor in predictors.items():
        with progress_bar(name) as progress:
            scores.append(score_writing(predictor, chosen, name, strings, length, temperature, seed, progress))
    if json_:
        print_json([s.as_dict() for s in scores])
        return
    print(f"{chosen.origin}: {problems} problems, {strings} strings of {length} symbols each; 95 % intervals over problems")
    rows = [[s.name, *(f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in (s.strings, s.symbols))] for s in scores]
    print_table(["", "strings accepted", "symbols accepted"], rows)
