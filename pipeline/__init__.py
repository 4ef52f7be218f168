"""The mill itself: recipe, plan, engine, store, report and command line."""
