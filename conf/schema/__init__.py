"""The schema of every settings group: types, defaults and allowed ranges.

The schemas of strategies, their parts and server optimizers are made from the rules' own
declarations. Every option that sets nothing beside its schema is its schema, registered under
the option's name; a YAML file stands for an option that does. So a key that is in no schema is
refused, and ``checks.check`` compares every value with its range. One module for each group.
"""
