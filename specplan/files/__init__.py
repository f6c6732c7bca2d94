"""What comes from outside, read within bounds, and what is written, whole or not at all.

- `text`: text from outside as it may be shown
- `reading`: files of bounded size, from regular files alone
- `documents`: JSON of bounded size, depth and numbers
- `lines`: lines of files of any size in bounded memory
- `writing`: the one way to write a file
"""
