"""An independent checker of certificates; see `qll.audit.check`."""

from qll.audit.check import Answer, audit

__all__ = ["Answer", "audit"]
