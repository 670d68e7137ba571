"""Tables, figures and pages. They are made from records and from the logics themselves; nothing
here trains, attacks or proves."""
