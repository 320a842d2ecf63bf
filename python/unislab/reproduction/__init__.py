"""Published results beside modelled ones.

:func:`published` gives a table as its authors printed it, :func:`reproduce` runs it on a modelled
machine and judges what came out.
"""

from unislab.reproduction.data import published
from unislab.reproduction.run import Reproduction, reproduce

__all__ = ["Reproduction", "published", "reproduce"]
