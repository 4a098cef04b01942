"""The scenarios of the full form in their order, and where each defect shows in the fast form."""

from collections.abc import Mapping

# From few tokens to many. Nothing in the order knows which defect is on.
SCENARIOS = (
    "two-slots",
    "context-end",
    "caps-and-stops",
    "interactive",
    "quick",
    "grammar",
    "hiding-places",
    "sampled",
    "sampled-top-p",
    "agent-loop",
    "classes",
)

# A defect that stands nowhere here is run on this: it shows in almost any conversation.
COMMON_PLACES = ("two-slots",)

FAST_PLACES: Mapping[str, tuple[str, ...]] = {
    "post-stop-token-kept": ("caps-and-stops",),
    "poisoned-prefix": ("interactive",),
    "defaults-differ-per-path": ("interactive",),
    "no-clamp-at-window": ("context-end",),
    "silent-truncation": ("context-end",),
    "cap-before-stop": ("caps-and-stops",),
    "degenerate-but-fast": ("quick",),
    "lossy-utf8": ("quick",),
    "grammar-starts-late": ("grammar",),
    "matcher-advanced-by-rejected": ("grammar",),
    "grammar-ignored-on-path": ("grammar",),
    "draft-kv-not-trimmed-on-reuse": ("hiding-places",),
    "stop-polled-at-turn-end": ("hiding-places",),
    "long-prefix-not-cut": ("hiding-places",),
    "drafts-once": ("caps-and-stops",),
    "top-p-ignored-on-drafts": ("sampled-top-p",),
    "wrong-q": ("sampled",),
    "seed-ignored": ("sampled",),
    "shared-rng": ("sampled",),
}
"""Where a defect shows, for those that need more than a short talk. Only the fast form looks here."""


def list_places(defect: str) -> tuple[str, ...]:
    """Return the scenarios on which the fast form runs a defect."""
    return FAST_PLACES.get(defect, COMMON_PLACES)
