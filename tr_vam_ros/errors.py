"""The one exception that means: the input is wrong, here is the rule and here is the remedy."""


class InputError(ValueError):
    """Bad input from a user, a file or a message.

    The text is one line that names the input, the rule it breaks and the remedy; commands print
    it without a traceback and exit 2, nodes put it into their diagnostics and stay alive.
    """
