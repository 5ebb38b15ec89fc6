"""The page: its files, and what serves them or writes them out as a static site. None of this runs inside the page."""
