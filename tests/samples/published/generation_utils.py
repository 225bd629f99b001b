"""Stands in for the publisher's file of this name, which no auto_map names, but the model imports."""


class DreamGenerationMixin:
    is_stand_in = True
