"""Looking inside: tables of policies, caches, slabs and queues."""

from unislab.inspect.policies import policy_counters, policy_tunables
from unislab.inspect.slabinfo import slabinfo_frame, slabinfo_text

__all__ = ["policy_counters", "policy_tunables", "slabinfo_frame", "slabinfo_text"]
