"""What schemathesis is told beside its configuration: a job file is a text."""

import schemathesis

schemathesis.serializer.alias("application/toml", "text/plain")
