"""Facts -> findings: rules, in plain sight in `find.RULES`, and which overrules which."""
