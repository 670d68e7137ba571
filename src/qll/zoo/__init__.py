"""Networks that are proved, with what it takes to see for oneself.

A network of the zoo is a folder:

card.toml           what it is: rule, data, recipe, accuracy or R2, how much is proved
network.onnx        takes raw input
rule.qll            the rule, with its parameters
certificates.zip    the evidence of the first regions: their points, the claim, one file for each
hashes.xz           status and SHA-256 of the certificate of every region of the test set

A rule that depends on no data point has one region, its whole domain: there are no points then, and
no claim, and one certificate.
"""
