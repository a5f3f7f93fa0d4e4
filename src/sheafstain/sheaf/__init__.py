"""The sheaf: covers, encoders, sections, restriction, gluing, and how far tokens and windows are from a section."""
