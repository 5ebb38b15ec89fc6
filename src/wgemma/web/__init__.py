"""The page's files, and the code that serves or exports them. None of the Python here runs inside the page."""
