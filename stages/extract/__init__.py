"""Pages to text: `extract(html, url)` for one page, the stage `Extract` for batches of them."""

from gristmill.stages.extract.engines import Extracted, compare, extract, extract_blocks
from gristmill.stages.extract.stage import Extract

__all__ = ["Extract", "Extracted", "compare", "extract", "extract_blocks"]
