"""Pages to text: `extract(html, url)` for one page, the stage `Extract` for batches of them."""

from stages.extract.engine import Extracted, compare, extract, extract_blocks
from stages.extract.stage import Extract

__all__ = ["Extract", "Extracted", "compare", "extract", "extract_blocks"]
