"""An optimizer for scripts that tests run in processes of their own."""

# Torch's own load its compiler when they are built: two seconds of CPU time in each process. Where
# no optimizer is what is tested, a script needs none of them.
DESCENT = """
class Descent:
    def __init__(self, parameters, lr=0.01):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= self.lr * parameter.grad
"""
