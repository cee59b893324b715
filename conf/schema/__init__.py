"""The schema of every settings group: types, defaults and allowed ranges.

The schemas of strategies, their parts and server optimizers are derived from the rules'
declarations. An option is its schema, registered under the option's name, or a YAML file if it sets
more than its schema. A key that is in no schema is refused, and ``checks.check_settings`` compares
every value with its range. Each group has one module.
"""
