"""The shop: products, search, pages, the reward, and one shopper in it."""
