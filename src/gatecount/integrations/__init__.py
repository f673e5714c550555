"""Gates in the servers and tools that people run; each module imports what it is for when it is used."""
