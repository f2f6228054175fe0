"""The compiled line of HTTP; `express_http.hpp` explains it."""

from slimsched.serving.api.express._compiled_line import CompiledLine, HttpNotice

class Express(CompiledLine[HttpNotice]): ...
