"""verl's reward managers of both eras, and what helped old recipes to load and call them."""
