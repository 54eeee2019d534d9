"""The WebShop engine: products, search, pages, the reward, and shopping sessions."""
