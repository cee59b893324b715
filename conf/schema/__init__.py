"""The schema of every settings group: types, defaults and allowed ranges.

A YAML file in a group inherits from its schema (``defaults: [schema_..., _self_]``), so a key
that is not here is refused, and ``checks.check`` compares every value with its range. One module
for each group.
"""
