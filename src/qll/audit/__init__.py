"""An independent checker of certificates: numpy and onnx's file reader, nothing of the prover.

The claim that a confirmed certificate proves: in real arithmetic on the weights stored in the ONNX
file (and on the stated normalisation), every point of the box satisfies the property, or the named
witness lies in the box and strictly violates it. Trusted besides this package: numpy and the
processor's IEEE arithmetic, the onnx reader, and `qll.formula`, which turns the property's text
into the linear atoms that are proved here.
"""

from qll.audit.check import Answer, audit, audit_folder

__all__ = ["Answer", "audit", "audit_folder"]
