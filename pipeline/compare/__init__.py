"""Two runs side by side: recipes, counts, fates of documents; on a page and in a terminal."""
