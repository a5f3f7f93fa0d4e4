"""What people look at: pages that are one file each. Everything comes in as arrays and facts, whatever made them."""
