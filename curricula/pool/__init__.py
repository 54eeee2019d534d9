"""The pool of training tasks, and what is known of them."""
