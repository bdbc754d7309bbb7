"""A fitted model behind HTTP: predictions and explanations as JSON, and a page for people.

Examples:
    >>> import rgat
    >>> from rgat.serve import make_app
    >>> app = make_app(rgat.fit("institute", comparison=False, max_epochs=2))
    >>> app.title
    'institute'
"""

try:
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"the service needs FastAPI and uvicorn ({error}); install them with `pip install 'rgat[serve]'`"
    ) from error

from rgat.serve.app import make_app
from rgat.serve.limits import Limits
from rgat.serve.server import run

__all__ = ["Limits", "make_app", "run"]
