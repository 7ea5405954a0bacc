"""What a random language and its strings look like: ranges, both ends included."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..errors import IcllError, unknown, whole
from ..tokens import N_SYMBOLS

MAX_STATES = 1000
MAX_TOKENS = 10_000_000  # of one problem

Range = tuple[int, int]


@dataclass(frozen=True)
class Profile:
    """A prior over languages (section 3.1) and over a problem's strings (section 3.2).

    A language has `states` states before minimisation and an alphabet of `alphabet` symbols drawn from the shared 18;
    each state has `edges` outgoing edges (never more than the other states or the alphabet allow). A problem has
    `strings` strings of `length` symbols.
    """

    states: Range = (4, 12)
    alphabet: Range = (4, N_SYMBOLS)
    edges: Range = (1, 4)
    length: Range = (1, 50)
    strings: Range = (10, 20)

    def __post_init__(self) -> None:
        limits = {
            "states": (2, MAX_STATES),
            "alphabet": (1, N_SYMBOLS),
            "edges": (1, N_SYMBOLS),
            "length": (1, 100_000),
            "strings": (1, 100_000),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not (isinstance(value, (tuple, list)) and len(value) == 2):
                raise IcllError(f"profile: {name} must be a pair of whole numbers like (1, 4), not {value!r}")
            value = tuple(whole(f"profile: {name}", v, 0) for v in value)
            object.__setattr__(self, name, value)
            if not least <= value[0] <= value[1] <= most:
                raise IcllError(f"profile: {name} must lie within {least}..{most}, least first, not {value!r}")
        if self.length[1] * self.strings[1] > MAX_TOKENS:
            raise IcllError(
                f"profile: {self.strings[1]} strings of {self.length[1]} symbols make more than {MAX_TOKENS:,} tokens"
            )
        if self.edges[0] > min(self.states[0] - 1, self.alphabet[0]):
            raise IcllError(
                f"profile: {self.edges[0]} edges need at least {self.edges[0] + 1} states and {self.edges[0]} symbols; "
                f"the profile allows {self.states[0]} and {self.alphabet[0]}: lower edges or raise states and alphabet"
            )

    def as_dict(self) -> dict[str, list[int]]:
        return {name: list(value) for name, value in asdict(self).items()}


PROFILES: dict[str, Profile] = {
    # The paper's text.
    "paper": Profile(),
    # The authors' code, and so every published number: the last three upper ends are one lower.
    "repo": Profile(edges=(1, 3), length=(1, 49), strings=(10, 19)),
}


def get_profile(profile: str | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise unknown("profile", str(profile), PROFILES)
    return PROFILES[profile]


def profile_name(profile: Profile) -> str:
    """`paper`, `repo`, or `custom`."""
    return next((name for name, known in PROFILES.items() if known == profile), "custom")
