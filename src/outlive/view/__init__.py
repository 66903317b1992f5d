"""What a store holds, as people and programs are shown it: the command line, the inspector and notebooks share this."""
