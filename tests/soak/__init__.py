"""The soak: thousands of turns through one daemon while its models fail in every way, and what is left then.

`answers` is the models, `inside` the daemon with a window into it, `people` those who prompt, `books` what
was told and what was stored of each turn, `measures` what the daemon takes; `running` puts it together.
"""
