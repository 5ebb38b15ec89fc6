"""How work on a store tells how far it is.

The work is a generator of progress in Ollama's words: `{"status": "pulling manifest"}`, then
`{"status": "pulling 4c27…", "digest": …, "total": …, "completed": …}` for the blobs, and at last
`{"status": "success"}`. What goes wrong is raised. Closing the generator stops the work.
"""

from collections.abc import Generator
from typing import Any

Event = dict[str, Any]
Work = Generator[Event, None, None]
