"""What sites and pages say of their use: reservations of rights and licenses. Others call `page_terms` (what a page
states), `opt_out` and `keep_licenses` (the rules)."""
