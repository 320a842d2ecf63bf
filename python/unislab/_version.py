"""The one place where the version is written: read by the build, compiled into the extensions."""

__version__ = "0.1.0"
