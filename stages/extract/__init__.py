"""Pages to text: `engines.extract(html, url)` for one page, the stage `Extract` for batches of them."""
