"""Many runs from one file: which there are, what is left to do, and one after the other done."""
