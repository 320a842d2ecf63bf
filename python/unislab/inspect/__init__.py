"""Looking inside: tables of policies, caches, slabs and queues."""

from unislab.inspect.policies import (
    is_reconstructed,
    policy_counters,
    policy_title,
    policy_tunables,
)
from unislab.inspect.slabinfo import slabinfo_frame, slabinfo_text

__all__ = [
    "is_reconstructed",
    "policy_counters",
    "policy_title",
    "policy_tunables",
    "slabinfo_frame",
    "slabinfo_text",
]
