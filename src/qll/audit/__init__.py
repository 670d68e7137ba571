"""An independent checker of certificates; see `qll.audit.check`.

from qll.audit import audit, read_claim
answer = audit(certificate, network, claim=read_claim("claim.toml"))
print(answer.confirmed, answer.reason)
"""

from qll.audit.check import Answer, audit
from qll.audit.expected import Expected, read_claim

__all__ = ["Answer", "Expected", "audit", "read_claim"]
