"""Headrace: language models served as a durable stream.

Owns nothing but the version; the packages are the top-level folders of the repository, linked in here.
"""

from importlib.metadata import version

__version__ = version("headrace")
