"""Looking inside: tables of caches, slabs and queues."""
