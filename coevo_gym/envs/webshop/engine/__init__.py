"""The WebShop engine: products, search, pages, rewards and shopping sessions."""
