"""macOS and Windows, simulated on Linux in a process of its own: what they lack is taken away.

    python -m rig.simulated windows -m pytest ...
    python -m rig.simulated macos SCRIPT [ARGUMENT ...]

The standard library and the dependencies are imported before that: only outlive meets the other system. Its
libraries are stand-ins that do with Linux what theirs do. Only a Mac and a Windows machine tell whether these
are like the real ones.
"""
