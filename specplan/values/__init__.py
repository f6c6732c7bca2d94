"""What a thing is: frozen, slotted, keyword-only dataclasses without behaviour beyond derived sizes.

- `formats`: how a number is stored (bits per weight, scales included)
- `model`: a decoder as layers of mixers and feed-forwards
- `hardware`: an accelerator with sourced numbers
"""
