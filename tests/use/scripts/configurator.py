"""Overrides globals of the script that executes this text: FILE sets several, --name=value one."""

import sys
from ast import literal_eval

for word in sys.argv[1:]:
    if "=" not in word:
        print(f"Overriding config with {word}:")
        with open(word) as file:
            print(file.read())
        with open(word) as file:
            exec(file.read())
    else:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in globals():
            raise ValueError(f"Unknown config key: {name}")
        try:
            globals()[name] = literal_eval(value)
        except (SyntaxError, ValueError):  # a text without quotes
            globals()[name] = value
        print(f"Overriding: {name} = {value}")
