"""Recording a training from inside a framework's trainer: one module each, imported by the user."""
