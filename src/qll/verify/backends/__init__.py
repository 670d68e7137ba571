"""One file per backend; each registers itself in `qll.verify.backend.BACKENDS`."""
