"""Functions of Python, run as graphs are."""

from tritone.runtime.runtime import Runtime

RUNTIME = Runtime(
    name="python",
    package=__package__,
    graph="graph:PythonGraph",
    suffix=".py",
    takes=("function",),
    needs="packaging",
    by_itself=True,
    programs="functions of Python",
    order=50,
)
