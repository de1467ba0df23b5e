"""verl's single controller: one driver calls methods of all ranks, ``Dispatch`` says how a batch is cut among them."""
